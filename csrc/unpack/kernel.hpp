// Unpack: every weight back as exact BF16, row-major. Integer arithmetic only.
//
// Bound by memory, 1.5 bytes in and 2 out a weight; a wave takes one tile after the other.
//   - Loads: three of 16 bytes a lane cover the tile's 1,536 bytes, each a run of whole 32-byte
//     sectors, with the hint for data that is read once. Those of the next tile are in flight while
//     this one is decoded.
//   - Lanes trade halves within each quad, undecoded (12 bits a weight), until every lane has the
//     pieces of format/pieces.hpp: stores then fill whole lines.
//   - Escapes replace decoded weights in registers, before the only store of each.
//
//   lane l: a = l % 2, t = l / 2 % 4, g = l / 8
//     load             row, s standing for row 4s + g       columns
//     signs k = 0, 1   s = 2k + a                           16t .. 16t+15
//     codes            s = 2 (t % 2) + a                    32 (t / 2) .. + 31
//   trade with lane ^ 2: codes of s = a and s = 2 + a, columns 16t .. 16t+15
//   trade with lane ^ 1: signs and codes of s = 0 .. 3, columns 8 (l % 8) .. + 7
//
// A slice of tile rows is a stack of its own (launch.hpp). A word that names quads outside the
// table leaves its tile unpatched: unchecked input gives wrong weights, never a wild read.
#pragma once
#include "csrc/format/decode_registers.hpp"
#include "csrc/format/pieces.hpp"

namespace nf12 {

struct UnpackParams {
  PackedStack packed;
  DenseStack<uint16_t> out;
  TileSteps steps;
};

inline constexpr int kUnpackWaves = 8;

// A lane's share of one tile as it is loaded, and the tile's index word.
struct UnpackLoads {
  arch::Words<4> signs[2];
  arch::Words<4> codes;
  uint32_t index;
};

// Byte offsets within a tile of a lane's loads.
struct UnpackOffsets {
  uint32_t signs[2], codes;
};

NF12_DEVICE UnpackOffsets unpack_offsets() {
  const int lane = arch::lane();
  const int a = lane % 2, t = lane / 2 % 4, g = lane / kRowLanes;
  const auto row = [g](int s) { return kPieceRows * s + g; };
  return {{static_cast<uint32_t>(sign_mantissa_byte(row(a), 16 * t)),
           static_cast<uint32_t>(sign_mantissa_byte(row(2 + a), 16 * t))},
          static_cast<uint32_t>(code_word_byte(row(t % 2 * 2 + a), t / 2 * 32))};
}

NF12_DEVICE UnpackLoads load_tile(const PackedStack& packed, const TilePlace& place,
                                  UnpackOffsets& offsets) {
  // Renewed for each tile: widened to 64 bits outside of the loop, they could not be the offsets of
  // a load with a scalar base any more.
  arch::settle(offsets.codes);
  arch::settle(offsets.signs[0]);
  arch::settle(offsets.signs[1]);
  const uint8_t* tile = arch::in_register(packed.tile(place.x, place.r, place.c));
  UnpackLoads loads;
  loads.index = arch::uniform_load<1>(packed.index_word(place.x, place.r, place.c), 0).w[0];
  loads.codes = arch::load_stream16(tile, offsets.codes);
  loads.signs[0] = arch::load_stream16(tile, offsets.signs[0]);
  loads.signs[1] = arch::load_stream16(tile, offsets.signs[1]);
  return loads;
}

// Of two lanes that differ in `mask`, the one without the bit ends with both their lows, the other
// with both their highs, its own in place.
template <int mask>
NF12_DEVICE void trade(uint32_t& low, uint32_t& high) {
  const bool upper = arch::lane() & mask;
  const uint32_t got = arch::swap_in_quad<mask>(upper ? low : high);
  low = upper ? got : low;
  high = upper ? high : got;
}

// Turns the loads into pieces and decodes them as w itself: the payload's constant exponent is
// 112, `rebase` adds base - 112 to both halves.
NF12_DEVICE void decode_pieces(UnpackLoads& loads, const DecodeConstants& mask, uint32_t rebase,
                               uint32_t (&w)[kLaneWords]) {
  trade<2>(loads.codes.w[0], loads.codes.w[2]);
  trade<2>(loads.codes.w[1], loads.codes.w[3]);
  NF12_UNROLL
  for (int k = 0; k < 2; ++k) {
    uint32_t* signs = loads.signs[k].w;
    uint32_t* codes = &loads.codes.w[2 * k];
    trade<1>(signs[0], signs[2]);
    trade<1>(signs[1], signs[3]);
    trade<1>(codes[0], codes[1]);
    NF12_UNROLL
    for (int a = 0; a < 2; ++a) {
      uint32_t* piece = &w[(2 * k + a) * kPieceWords];
      decode_eight(signs + 2 * a, codes[a], mask, piece);
    }
  }
  // base + code <= 143 and base >= 96: no half carries into or borrows from its neighbour.
  NF12_UNROLL
  for (uint32_t& pair : w) pair += rebase;
}

NF12_DEVICE void patch_listed(const uint32_t* escapes, int count, int shift,
                              uint32_t (&w)[kLaneWords]) {
  NF12_NO_UNROLL
  for (int i = 0; i < count; ++i) {
    const Escape escape = Escape::from_bits(arch::uniform_load<1>(escapes, 4 * i).w[0]);
    const uint32_t half = escape.position % 2 ? 0xFFFF0000u : 0x0000FFFFu;
    const uint32_t mask = arch::lane() == piece_owner(escape.position) ? half : 0u;
    arch::replace16(w, piece_slot(escape.position), mask, scale_by(escape.value, shift) * 0x10001u);
  }
}

// A raw tile comes from the table alone, where it lies as pieces: 256 s + 8 l is the position of a
// lane's piece s.
template <int alignment>
NF12_DEVICE void copy_raw(const uint32_t* values, int shift, const DenseStack<uint16_t>& out,
                          const TilePlace& place) {
  NF12_NO_UNROLL
  for (int s = 0; s < kPieces; ++s) {
    arch::Words<4> piece = arch::load16(values, 512 * s + 16 * arch::lane());
    if (shift != 0) {
      NF12_UNROLL
      for (uint32_t& pair : piece.w) pair = scale_pair(pair, shift);
    }
    // Here, for all lanes: where none stores, the load would stay unread, and later waits for the
    // next tile would be for everything.
    NF12_UNROLL
    for (uint32_t& pair : piece.w) arch::settle(pair);
    store_piece_of<alignment>(out, place, s, piece.w);
  }
}

// What does not change from tile to tile.
struct UnpackConstants {
  DecodeConstants mask;
  int shift;        // that takes escapes back to w
  uint32_t rebase;  // that takes decoded pairs there
};

template <int alignment>
NF12_DEVICE void unpack_tile(const UnpackParams& p, const UnpackConstants& constants,
                             const TilePlace& place, UnpackLoads& loads) {
  const PackedView& packed = p.packed.first;
  const IndexWord word = IndexWord::from_bits(loads.index);
  const bool patched = word.is_inside(packed.quads);
  const uint32_t* quads = packed.escapes + int64_t{word.quad} * kEntriesPerQuad;
  if (patched && word.is_raw()) {
    copy_raw<alignment>(quads, constants.shift, p.out, place);
    return;
  }
  uint32_t w[kLaneWords];
  decode_pieces(loads, constants.mask, constants.rebase, w);
  if (patched) patch_listed(quads, static_cast<int>(word.count), constants.shift, w);
  store_pieces<alignment>(p.out, place, w);
}

// The walk's next tile, or the same again if there is none: a branch around its loads would leave
// their number unknown, and every wait would be for all of them.
NF12_DEVICE bool advance(const TileSteps& steps, TilePlace& place) {
  TilePlace next = place;
  next.advance(steps);
  const bool more = next.tile < steps.tiles;
  if (more) place = next;
  return more;
}

template <int alignment>
NF12_DEVICE void unpack(const UnpackParams& p) {
  const uint32_t first = arch::block_x() * kUnpackWaves + arch::wave();
  if (first >= p.steps.tiles) return;
  const int shift = -scale_shift(p.packed.first.base);
  UnpackOffsets offsets = unpack_offsets();
  const UnpackConstants constants = {
      .mask = {}, .shift = shift, .rebase = static_cast<uint32_t>(shift) * 0x00800080u};
  // Two sets of registers in turn: as one, each tile would have to arrive before it could move over
  // for the next.
  TilePlace even = TilePlace::of(p.steps, first), odd = even;
  UnpackLoads even_loads = load_tile(p.packed, even, offsets);
  NF12_NO_UNROLL
  for (;;) {
    odd = even;
    const bool has_odd = advance(p.steps, odd);
    UnpackLoads odd_loads = load_tile(p.packed, odd, offsets);
    arch::hold_order();
    unpack_tile<alignment>(p, constants, even, even_loads);
    if (!has_odd) return;
    even = odd;
    const bool has_even = advance(p.steps, even);
    even_loads = load_tile(p.packed, even, offsets);
    arch::hold_order();
    unpack_tile<alignment>(p, constants, odd, odd_loads);
    if (!has_even) return;
  }
}

}  // namespace nf12
