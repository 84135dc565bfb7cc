// How a wave holds one tile of BF16 weights: as pieces of eight neighbouring columns, 16 bytes.
//
//   lane l, piece s (0..3)    row 4s + l/8, columns 8 (l % 8) .. + 7       w[4s .. 4s+3]
//
//        columns    0..7    8..15   ...   56..63
//   row 4s          lane 0  lane 1        lane 7       a load or store of piece s by the wave
//   row 4s + 1      lane 8  lane 9        lane 15      covers four whole lines of 128 bytes
//   row 4s + 2      lane 16                lane 23
//   row 4s + 3      lane 24                lane 31
//
// Weight i of the piece is position 256 s + 8 l + i of the tile: (s, lane, i) is the order of the
// side table.
#pragma once
#include "csrc/format/escapes.hpp"
#include "csrc/format/scale.hpp"
#include "csrc/format/stack.hpp"

namespace nf12 {

inline constexpr int kPieces = 4;
inline constexpr int kPieceColumns = 8;
inline constexpr int kPieceWords = kPieceColumns / 2;
inline constexpr int kLaneWords = kPieces * kPieceWords;
inline constexpr int kPieceRows = kTileRows / kPieces;  // rows of the tile from piece to piece
inline constexpr int kRowLanes = kTileColumns / kPieceColumns;
static_assert(kLaneWords * 2 * arch::kWave == kTileWeights);

NF12_DEVICE int piece_row(int lane) { return lane / kRowLanes; }  // of piece 0
NF12_DEVICE int piece_column(int lane) { return lane % kRowLanes * kPieceColumns; }

// Where a position of the tile is held.
NF12_DEVICE int piece_owner(uint32_t position) {
  return static_cast<int>(position / kPieceColumns % arch::kWave);
}
NF12_DEVICE int piece_slot(uint32_t position) {
  return static_cast<int>(position / (kPieceRows * kTileColumns) * kPieceWords +
                          position % kPieceColumns / 2);
}

NF12_DEVICE uint32_t scale_pair(uint32_t pair, int shift) {
  return scale_by(static_cast<uint16_t>(pair), shift) |
         uint32_t{scale_by(static_cast<uint16_t>(pair >> 16), shift)} << 16;
}

NF12_DEVICE uint16_t half_of(uint32_t pair, int i) {
  return static_cast<uint16_t>(i % 2 ? pair >> 16 : pair);
}

// Piece s of the tile at `place` of a dense stack whose rows are aligned to `alignment` bytes.
// Padding is neither read nor written; where it would be read it is `padding`, a pair.
template <int alignment>
NF12_DEVICE void load_piece_of(const DenseStack<const uint16_t>& dense, const TilePlace& place,
                               int s, uint32_t padding, uint32_t* piece) {
  NF12_UNROLL
  for (int i = 0; i < kPieceWords; ++i) piece[i] = padding;
  const int row = s * kPieceRows + piece_row(arch::lane());
  const int column = piece_column(arch::lane());
  const int columns = row < dense.rows_from(place.r) ? dense.columns_from(place.c) - column : 0;
  const uint16_t* from = dense.tile(place.x, place.r, place.c) + row * dense.row_stride + column;
  if (columns >= kPieceColumns) {
    const arch::Words<4> words = arch::load_words<4, alignment>(from);
    NF12_UNROLL
    for (int i = 0; i < kPieceWords; ++i) piece[i] = words.w[i];
  } else {
    NF12_UNROLL
    for (int i = 0; i < kPieceColumns; ++i) {
      uint32_t mask = 0, value = 0;
      if (i < columns) {
        mask = 0xFFFFu << i % 2 * 16;
        value = arch::load2(from + i, 0) * 0x10001u;
      }
      piece[i / 2] = arch::merge_bits(mask, value, piece[i / 2]);
    }
  }
}

// All four. Those of a whole tile have a path of their own, because a wait for the single weights
// of another tile's edge would come before each of them.
template <int alignment>
NF12_DEVICE void load_pieces(const DenseStack<const uint16_t>& dense, const TilePlace& place,
                             uint32_t padding, uint32_t (&w)[kLaneWords]) {
  if (dense.rows_from(place.r) >= kTileRows && dense.columns_from(place.c) >= kTileColumns) {
    const uint16_t* at = dense.tile(place.x, place.r, place.c) +
                         piece_row(arch::lane()) * dense.row_stride + piece_column(arch::lane());
    NF12_UNROLL
    for (int s = 0; s < kPieces; ++s) {
      const arch::Words<4> words =
          arch::load_words<4, alignment>(at + s * kPieceRows * dense.row_stride);
      NF12_UNROLL
      for (int i = 0; i < kPieceWords; ++i) w[s * kPieceWords + i] = words.w[i];
    }
  } else {
    NF12_UNROLL
    for (int s = 0; s < kPieces; ++s)
      load_piece_of<alignment>(dense, place, s, padding, &w[s * kPieceWords]);
  }
}

// Eight weights of a row, or fewer where the row ends.
template <int alignment>
NF12_DEVICE void store_piece(uint16_t* to, int columns, const uint32_t* piece) {
  if (columns >= kPieceColumns) {
    arch::store_words<4, alignment>(to, {{piece[0], piece[1], piece[2], piece[3]}});
    return;
  }
  NF12_UNROLL
  for (int i = 0; i < kPieceColumns; ++i)
    if (i < columns) arch::store2(to + i, half_of(piece[i / 2], i));
}

template <int alignment>
NF12_DEVICE void store_piece_of(const DenseStack<uint16_t>& dense, const TilePlace& place, int s,
                                const uint32_t* piece) {
  const int row = s * kPieceRows + piece_row(arch::lane());
  const int column = piece_column(arch::lane());
  if (row >= dense.rows_from(place.r)) return;
  store_piece<alignment>(dense.tile(place.x, place.r, place.c) + row * dense.row_stride + column,
                         dense.columns_from(place.c) - column, piece);
}

template <int alignment>
NF12_DEVICE void store_pieces(const DenseStack<uint16_t>& dense, const TilePlace& place,
                              const uint32_t (&w)[kLaneWords]) {
  NF12_UNROLL
  for (int s = 0; s < kPieces; ++s) store_piece_of<alignment>(dense, place, s, &w[s * kPieceWords]);
}

// What rows that start at `bytes` and every `stride_bytes` are aligned to, of 16, 4 and 2.
constexpr int alignment_of(uint64_t bytes) { return bytes % 16 == 0 ? 16 : bytes % 4 == 0 ? 4 : 2; }

}  // namespace nf12
