// Where decoding leaves the columns of a row, and the same order for activations.
//
// A register of kPairLanes pairs covers 4 * kPairLanes columns together with its neighbour: every
// 128-bit lane spans 16 columns (two code words), and register j of the two holds the columns
// 4j..4j+3 and 8+4j..8+4j+3 of those 16. Four neighbouring columns, 8 bytes of BF16, never part.
//
// The sum over k may be taken in any order, so x is brought into this order once per call instead
// of the weights into theirs on every one.
#pragma once
#include "csrc/format/layout.hpp"

namespace nf12::cpu {

inline constexpr int kPiece = 4;  // columns that stay together
inline constexpr int kPieces = kTileColumns / kPiece;

// Piece `piece` (columns 4 piece .. 4 piece + 3) of a row comes to this place among the 16.
template <int kPairLanes>
NF12_INLINE constexpr int lane_order_piece(int piece) {
  constexpr int kLanes = kPairLanes / 4;  // 128-bit lanes of a register
  const int half = piece / (4 * kLanes), lane = piece / 4 % kLanes;
  const int slot = piece / 2 % 2, j = piece % 2;
  return ((2 * half + j) * kLanes + lane) * 2 + slot;
}

// The same for a position 64 r + c within a tile.
template <int kPairLanes>
NF12_INLINE constexpr int lane_order(int position) {
  const int row = position / kTileColumns, column = position % kTileColumns;
  return kTileColumns * row + kPiece * lane_order_piece<kPairLanes>(column / kPiece) +
         column % kPiece;
}

static_assert(lane_order<8>(4) == 16 && lane_order<8>(8) == 4 && lane_order<8>(16) == 8);
static_assert(lane_order<8>(32) == 32 && lane_order<8>(63) == 63);
static_assert(lane_order<16>(4) == 32 && lane_order<16>(16) == 8 && lane_order<16>(63) == 63);

}  // namespace nf12::cpu
