// The work split of one compiled matrix kernel, and what of it a block and a wave get.
#pragma once
#include "csrc/gemm/matrix/config.hpp"
#include "csrc/gemm/params.hpp"

namespace nf12 {

inline constexpr int kTokenTile = 16;
inline constexpr int kTokenPieceColumns = 8;  // 16 bytes of x
inline constexpr int kRowPieces = kTileColumns / kTokenPieceColumns;
// 16 bytes more than 64 columns need: the 16 lanes that read one column of pieces then start in
// different banks.
inline constexpr int kPitchWords = kTileColumns / 2 + 4;

template <MatrixConfig config>
struct MatrixPlan {
  static constexpr int kTokens = config.tokens;
  static constexpr int kWaves = config.waves;
  static constexpr int kRows = config.tile_rows;
  static constexpr int kThreads = kWaves * arch::kWave;
  static constexpr int kTokenTiles = kTokens / kTokenTile;

  // B fragments of a column: step by step, token tiles fastest. They are read a group ahead.
  static constexpr int kFragments = arch::kFragmentSteps * kTokenTiles;
  static constexpr int kGroup = kFragments < 8 ? kFragments / 2 : 4;
  static constexpr int kGroups = kFragments / kGroup;

  static constexpr int kPieces = kTokens * kRowPieces / kThreads;  // of x, a lane
  static constexpr int kPieceTokens = kThreads / kRowPieces;       // tokens from one to the next
  static constexpr int kStageWords = kTokens * kPitchWords;

  static_assert(kTokens % kTokenTile == 0 && kTokenTiles >= 1);
  static_assert(kRows == 1 || kRows == 2);
  static_assert(kPieces * kThreads == kTokens * kRowPieces, "every lane stages as much of x");
};

// Tile columns [begin, end) of this block's split. The loop takes pairs of whole ones, up to
// `paired`.
struct ColumnRange {
  int begin, paired, end;
};

NF12_DEVICE ColumnRange column_range(const GemmParams& p) {
  const int total = tile_columns_of(p.weight);
  const int begin = arch::block_y() * p.columns_per_split;
  const int stop = begin + p.columns_per_split;
  const int end = arch::in_register(stop < total ? stop : total);
  const int whole = static_cast<int>(static_cast<uint32_t>(p.weight.k) / kTileColumns);
  const int pairs = ((whole < end ? whole : end) - begin) / 2;
  return {begin, arch::in_register(begin + 2 * pairs), end};
}

// Which rows of W and which tokens a wave works on. Token blocks vary fastest: those that read the
// same weights run together.
template <MatrixConfig config>
struct Place {
  int tile_row[MatrixPlan<config>::kRows];  // may lie past the last one
  int token;                                // the block's first
};

template <MatrixConfig config>
NF12_DEVICE Place<config> place_of(const GemmParams& p) {
  using Plan = MatrixPlan<config>;
  const uint32_t token_blocks = (static_cast<uint32_t>(p.m) + Plan::kTokens - 1) / Plan::kTokens;
  const uint32_t block = arch::block_x();
  const uint32_t row_block = block / token_blocks;
  Place<config> place;
  NF12_UNROLL
  for (int r = 0; r < Plan::kRows; ++r)
    place.tile_row[r] = (row_block * Plan::kWaves + arch::wave()) * Plan::kRows + r;
  place.token = (block - row_block * token_blocks) * Plan::kTokens;
  return place;
}

}  // namespace nf12
