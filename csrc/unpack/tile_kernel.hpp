// Unpack with a tile a wave, for GPUs where many waves hide latency better than loads that run
// ahead (NVIDIA). What is unpacked, and how a grid shares it out, is as in kernel.hpp.
//
//   - Loads: the index word, then the list and the payload at once, and of a raw tile its values
//     alone. To load the payload with the index word takes 1 to 6 % less time for weights without
//     raw tiles, but 23 to 30 % more for raw ones. 8 bytes of signs and 4 of codes for each of a
//     lane's pieces (format/pieces.hpp), so that no lane trades.
//   - Lists: by all lanes at once. The decoded pieces go to shared memory, where weight i of the
//     tile is half i, each lane puts entries over them, and they come back. A loop over entries in
//     registers takes 98 instructions each, for ten three times what decoding takes.
//   - Stores: with the hint for data that is not read soon. Without it, in five blocks a
//     multiprocessor, 2 % less to 32 % more time.
//
// 40 registers and 2 KiB of shared memory a wave (sm_90a): 48 waves share a multiprocessor. Of
// entries that name one position twice, as only unchecked input has them, any may win.
//
// Figures are those of prototypes, four shapes and four rates of escapes, H200, 2026-11-30, cold
// (docs/performance.md).
#pragma once
#include "csrc/unpack/kernel.hpp"

namespace nf12 {

struct EncodedPieces {
  arch::Words<2> signs[kPieces];
  arch::Words<1> codes[kPieces];
};

NF12_DEVICE EncodedPieces load_encoded(const uint8_t* tile) {
  const uint8_t* signs = tile + kPieceColumns * arch::lane();
  const uint8_t* codes = tile + kCodesOffset + kPieceColumns / 2 * arch::lane();
  constexpr int kPieceWeights = kTileWeights / kPieces;
  EncodedPieces loads;
  NF12_UNROLL
  for (int s = 0; s < kPieces; ++s) {
    loads.signs[s] = arch::load_stream<2>(signs + kPieceWeights * s);
    loads.codes[s] = arch::load_stream<1>(codes + kPieceWeights / 2 * s);
  }
  return loads;
}

NF12_DEVICE void decode_encoded(const EncodedPieces& loads, const UnpackConstants& constants,
                                uint32_t (&w)[kLaneWords]) {
  NF12_UNROLL
  for (int s = 0; s < kPieces; ++s) {
    decode_eight(loads.signs[s].w, loads.codes[s].w[0], constants.mask, &w[s * kPieceWords]);
  }
  NF12_UNROLL
  for (uint32_t& pair : w) pair += constants.rebase;
}

NF12_DEVICE void load_raw(const uint32_t* values, uint32_t (&w)[kLaneWords]) {
  NF12_UNROLL
  for (int s = 0; s < kPieces; ++s) {
    const arch::Words<4> piece =
        arch::load_stream<4>(values + kPieceWords * (arch::kWave * s + arch::lane()));
    NF12_UNROLL
    for (int i = 0; i < kPieceWords; ++i) w[s * kPieceWords + i] = piece.w[i];
  }
}

// The wave's part of the block's shared memory, in words.
inline constexpr int kUnpackTileWords = kTileWeights / 2;

// Blocks that share a multiprocessor. Five take 1 to 7 % more time; left to itself, ptxas takes 57
// registers, for four. Rows off 16 bytes (not measured) spill two registers.
inline constexpr int kUnpackTileBlocks = 6;

// `part`: where the wave's part of shared memory begins, in words. `mine`: entry lane() of the
// list; the rest of a long one is read here.
NF12_DEVICE void patch_at_once(const arch::Shared<uint32_t>& shared, int part,
                               const uint32_t* entries, int count, uint32_t mine, int shift,
                               uint32_t (&w)[kLaneWords]) {
  const int lane = arch::lane();
  const auto place = [&](int s) { return part + kPieceWords * (arch::kWave * s + lane); };
  // From the tile before no other lane reads or writes a lane's pieces any more.
  NF12_UNROLL
  for (int s = 0; s < kPieces; ++s) {
    const uint32_t* piece = &w[s * kPieceWords];
    arch::store_shared16(shared, place(s), {{piece[0], piece[1], piece[2], piece[3]}});
  }
  arch::sync_wave();
  NF12_NO_UNROLL
  for (int i = lane; i < count; i += arch::kWave) {
    if (i >= arch::kWave) mine = arch::load_words<1>(entries + i).w[0];
    const Escape escape = Escape::from_bits(mine);
    arch::store_shared2(shared, 2 * part + static_cast<int>(escape.position),
                        scale_by(escape.value, shift));
  }
  arch::sync_wave();
  NF12_UNROLL
  for (int s = 0; s < kPieces; ++s) {
    const arch::Words<4> piece = arch::load_shared<4>(shared, place(s));
    NF12_UNROLL
    for (int i = 0; i < kPieceWords; ++i) w[s * kPieceWords + i] = piece.w[i];
  }
}

// As store_pieces, with one address and a path of its own for a whole tile.
template <int alignment>
NF12_DEVICE void store_tile(const DenseStack<uint16_t>& out, const TilePlace& place,
                            const uint32_t (&w)[kLaneWords]) {
  const int row = piece_row(arch::lane()), column = piece_column(arch::lane());
  uint16_t* at = out.tile(place.x, place.r, place.c) + row * out.row_stride + column;
  const int rows = out.rows_from(place.r), columns = out.columns_from(place.c);
  if (rows >= kTileRows && columns >= kTileColumns) {
    NF12_UNROLL
    for (int s = 0; s < kPieces; ++s) {
      const uint32_t* piece = &w[s * kPieceWords];
      arch::store_stream<alignment>(at, {{piece[0], piece[1], piece[2], piece[3]}});
      at += kPieceRows * out.row_stride;
    }
    return;
  }
  NF12_UNROLL
  for (int s = 0; s < kPieces; ++s) {
    if (kPieceRows * s + row < rows)
      store_piece<alignment>(at, columns - column, &w[s * kPieceWords]);
    at += kPieceRows * out.row_stride;
  }
}

template <int alignment>
NF12_DEVICE void unpack_place(const UnpackParams& p, const UnpackConstants& constants,
                              const arch::Shared<uint32_t>& shared, int part,
                              const TilePlace& place) {
  const PackedView& packed = p.packed.first;
  const uint32_t index = arch::load_stream<1>(p.packed.index_word(place.x, place.r, place.c)).w[0];
  const IndexWord word = IndexWord::from_bits(index);
  const bool inside = word.is_inside(packed.quads);
  // With && the list's load is in a branch, which ends before the payload's begin.
  const bool raw = inside & word.is_raw(), listed = inside & !word.is_raw();
  const uint32_t* quads = packed.escapes + int64_t{word.quad} * kEntriesPerQuad;
  const int count = static_cast<int>(word.count);
  uint32_t mine = 0;
  if (listed && arch::lane() < count) mine = arch::load_words<1>(quads + arch::lane()).w[0];
  EncodedPieces loads;
  // Not where they are decoded: there, ptxas has two wait until others are.
  if (!raw) loads = load_encoded(p.packed.tile(place.x, place.r, place.c));
  if (raw && constants.shift != 0) {
    copy_raw<alignment>(quads, constants.shift, p.out, place);
    return;
  }
  uint32_t w[kLaneWords];
  if (raw)
    load_raw(quads, w);
  else
    decode_encoded(loads, constants, w);
  if (listed) patch_at_once(shared, part, quads, count, mine, constants.shift, w);
  store_tile<alignment>(p.out, place, w);
}

template <int alignment>
NF12_DEVICE void unpack_tiles(const UnpackParams& p) {
  NF12_SHARED(uint32_t, shared, kUnpackWaves* kUnpackTileWords);
  const int shift = -scale_shift(p.packed.first.base);
  const UnpackConstants constants = {
      .mask = {}, .shift = shift, .rebase = static_cast<uint32_t>(shift) * 0x00800080u};
  const int wave = arch::wave();  // once, or ptxas works out places lane by lane
  const uint32_t first = arch::block_x() * kUnpackWaves + wave;
  NF12_NO_UNROLL
  for (uint32_t tile = first; tile < p.steps.tiles; tile += p.steps.waves)
    unpack_place<alignment>(p, constants, shared, kUnpackTileWords * wave,
                            TilePlace::of(p.steps, tile));
}

}  // namespace nf12
