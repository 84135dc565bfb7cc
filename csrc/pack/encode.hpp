// Pack, last pass: payload and side table, once every tile has its index word.
//
// A wave takes one tile after the other, as pieces (format/pieces.hpp): a piece becomes 8 bytes of
// signs at 8 times its place in the tile and 4 bytes of codes at 4 times it, so stores are whole
// runs. The order of a list is (piece, lane, column), so that an entry's place follows from sums
// over the wave. Raw tiles get zero bits here; write_raw fills the table, once for each content.
#pragma once
#include "csrc/pack/count.hpp"

namespace nf12 {

struct EncodedPiece {
  arch::Words<2> signs;
  arch::Words<1> codes;
};

// Zero bits for weights outside the window.
NF12_DEVICE EncodedPiece encode_piece(const uint32_t* piece, int base) {
  EncodedPiece out = {};
  NF12_UNROLL
  for (int i = 0; i < kPieceColumns; ++i) {
    const uint32_t bits = half_of(piece[i / 2], i);
    const uint32_t code = (bits >> 7 & 0xFF) - static_cast<uint32_t>(base);
    const bool is_coded = code < static_cast<uint32_t>(kWindow);
    const uint32_t signs = is_coded ? (bits >> 8 & 0x80) | (bits & 0x7F) : 0;
    out.signs.w[i / 4] |= signs << 8 * (i % 4);
    out.codes.w[0] |= (is_coded ? code : 0) << code_bit(i);
  }
  return out;
}

// Never past the word's own quads, even if the weights have changed since they were counted.
NF12_DEVICE void write_list(const uint32_t (&w)[kLaneWords], IndexWord word, int base,
                            uint32_t* entries) {
  uint32_t listed = 0;  // by the pieces so far
  NF12_UNROLL
  for (int s = 0; s < kPieces; ++s) {
    const uint32_t* piece = &w[s * kPieceWords];
    uint32_t left = escapes_of(piece, base);
    const WaveSum sum = wave_sum<4>(static_cast<uint32_t>(std::popcount(left)));
    uint32_t place = listed + sum.before;
    listed += sum.total;
    NF12_NO_UNROLL
    for (; left != 0 && place < word.count; left &= left - 1, ++place) {
      // Its lowest bit. Not by std::countr_zero, which nvcc 13.0 takes in device code and makes 32.
      const int i = std::popcount((left & (0u - left)) - 1);
      uint32_t pair = piece[0];
      NF12_UNROLL
      for (int j = 1; j < kPieceWords; ++j) pair = i / 2 == j ? piece[j] : pair;
      const auto position =
          static_cast<uint32_t>(kTileWeights / kPieces * s + kPieceColumns * arch::lane() + i);
      const Escape escape{position, scale_by(half_of(pair, i), scale_shift(base))};
      arch::store_words<1>(entries + place, {{escape.bits()}});
    }
  }
  const uint32_t end = word.quads() * kEntriesPerQuad;
  NF12_NO_UNROLL
  for (uint32_t i = (listed < word.count ? listed : word.count) + arch::lane(); i < end;
       i += arch::kWave)
    arch::store_words<1>(entries + i, {{0}});
}

template <int alignment>
NF12_DEVICE void encode(const PackParams& p) {
  const uint32_t first = arch::block_x() * kPackWaves + arch::wave();
  TilePlace place = TilePlace::of(p.steps, first);
  NF12_NO_UNROLL
  for (; place.tile < p.steps.tiles; place.advance(p.steps)) {
    const uint32_t index = arch::uniform_load<1>(p.index + place.tile, 0).w[0];
    const IndexWord word = IndexWord::from_bits(index);
    uint32_t w[kLaneWords];
    if (word.is_raw()) {
      NF12_UNROLL
      for (uint32_t& pair : w) pair = neutral_pair(p.base);
    } else {
      load_pieces<alignment>(p.source, place, neutral_pair(p.base), w);
    }
    uint8_t* tile = p.payload + int64_t{place.tile} * kTileBytes;
    NF12_UNROLL
    for (int s = 0; s < kPieces; ++s) {
      const EncodedPiece piece = encode_piece(&w[s * kPieceWords], p.base);
      const int position = kTileWeights / kPieces * s + kPieceColumns * arch::lane();
      arch::store_words<2>(tile + position, piece.signs);
      arch::store_words<1>(tile + kCodesOffset + position / 2, piece.codes);
    }
    if (word.is_listed())
      write_list(w, word, p.base, p.escapes + int64_t{word.quad} * kEntriesPerQuad);
  }
}

// The table of each raw content, from the first tile that has it.
NF12_DEVICE void write_raw(const PackParams& p) {
  NF12_NO_UNROLL
  for (uint32_t i = arch::block_x() * kPackWaves + arch::wave(); i < p.list_length;
       i += p.list_waves) {
    const uint32_t tile = arch::uniform_load<1>(p.list + i, 0).w[0];
    const uint32_t index = arch::uniform_load<1>(p.index + tile, 0).w[0];
    const TilePlace place = TilePlace::of(p.steps, tile);
    uint32_t* values = p.escapes + int64_t{IndexWord::from_bits(index).quad} * kEntriesPerQuad;
    NF12_NO_UNROLL
    for (int s = 0; s < kPieces; ++s) {
      arch::Words<4> piece;
      load_piece_of<2>(p.source, place, s, 0, piece.w);
      if (p.base != kNeutralBase) {
        NF12_UNROLL
        for (uint32_t& pair : piece.w) pair = scale_pair(pair, scale_shift(p.base));
      }
      const int position = kTileWeights / kPieces * s + kPieceColumns * arch::lane();
      arch::store_words<4>(values + position / 2, piece);
    }
  }
}

}  // namespace nf12
