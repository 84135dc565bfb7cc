// Matrix-core GEMM for m >= 16 (right for every m >= 1): y[t, j] = sum_k x[t, k] W[j, k].
//
// Bound by the bytes of the weights up to about 128 tokens, by the matrix cores above.
//   - A wave owns one or two tile rows of W and walks along their tile columns. The 48 bytes of a
//     tile that a lane loads are, decoded, its A fragments: no shuffle, no shared memory. Each
//     decode serves all tokens of the block.
//   - The waves of a block own different tile rows and share x: 64 columns of all its tokens are
//     staged in shared memory while the 64 before them are multiplied. One read of 16 bytes a lane
//     is the B fragment of 16 tokens (lane maps: arch/fragments.hpp).
//   - Two tile columns of weights are in flight: one waits in registers, one more is loaded.
//   - blockIdx.y splits the tile columns where n alone does not fill the card; such a launch writes
//     FP32 partials, and combine.hpp adds them in the order of the splits.
//
//   round c of a wave                                     shared memory   stage c % 2   the other
//     decode and patch the weights of column c
//     wait: all have stored x of c and are done with c-1                  x of c        free
//     store x of c+1; load x and weights of c+2                           x of c        x of c+1
//     multiply; signal as soon as nothing more is read                    free
//
// Order of a sum (the reference in the tests follows it): tile columns ascending, within one the
// four steps, within a step the hardware's own order; then the splits ascending.
// Tokens past m and rows past n are clamped to the last one, and their sums dropped. Columns past k
// are zeros of x, because the weights' padding is not zero.
#pragma once
#include "csrc/gemm/matrix/outputs.hpp"
#include "csrc/gemm/matrix/tokens.hpp"
#include "csrc/gemm/matrix/weights.hpp"

namespace nf12 {

// What a wave works on.
template <MatrixConfig config>
struct MatrixWave {
  ColumnRange columns;
  WeightRows<config> weights;
  TokenRows<config> tokens;
  Stages stages;
  int stage_word;  // the lane's first in a stage
};

// Everything a wave holds of the tile columns to come.
template <MatrixConfig config>
struct MatrixPipeline {
  LaneTile tiles[2][MatrixPlan<config>::kRows];  // of even and of odd columns of the split
  uint32_t index[MatrixPlan<config>::kRows];
  TokenPieces<config> x;
};

// The block is told that a stage is read as soon as its last fragments have arrived, two groups
// before they are all multiplied.
template <MatrixConfig config>
NF12_DEVICE void multiply_stage(const uint32_t (&w)[MatrixPlan<config>::kRows][kLanePairs],
                                const MatrixWave<config>& wave, int stage,
                                BlockSums<config>& sums) {
  using Plan = MatrixPlan<config>;
  const int first_word = stage * Plan::kStageWords + wave.stage_word;
  arch::Words<4> x[2][Plan::kGroup];
  const auto load_group = [&](int group) {
    NF12_UNROLL
    for (int i = 0; i < Plan::kGroup; ++i) {
      const int fragment = group * Plan::kGroup + i;
      const int step = fragment / Plan::kTokenTiles, tile = fragment % Plan::kTokenTiles;
      x[group % 2][i] = load_fragment(wave.stages, first_word + tile * kTokenTile * kPitchWords +
                                                       step * arch::Fragments::kStepColumns / 2);
    }
  };
  load_group(0);
  NF12_UNROLL
  for (int group = 0; group < Plan::kGroups; ++group) {
    if (group + 1 < Plan::kGroups) load_group(group + 1);
    if (group + 2 == Plan::kGroups) arch::signal_block();
    arch::hold_order();
    NF12_UNROLL
    for (int i = 0; i < Plan::kGroup; ++i) {
      const int fragment = group * Plan::kGroup + i;
      const int step = fragment / Plan::kTokenTiles, tile = fragment % Plan::kTokenTiles;
      NF12_UNROLL
      for (int r = 0; r < Plan::kRows; ++r)
        arch::multiply_fragment(w[r], step, x[group % 2][i], sums.tile[r][tile]);
    }
    arch::hold_order();
  }
  // Else they are carried into the next column's blocks, and x with them.
  NF12_UNROLL
  for (int r = 0; r < Plan::kRows; ++r) {
    NF12_UNROLL
    for (int tile = 0; tile < Plan::kTokenTiles; ++tile) arch::settle(sums.tile[r][tile]);
  }
}

template <MatrixConfig config>
NF12_DEVICE void multiply_column(const GemmParams& p, const DecodeConstants& mask,
                                 MatrixWave<config>& wave, int column, int parity,
                                 MatrixPipeline<config>& next, BlockSums<config>& sums) {
  const ColumnRange& columns = wave.columns;
  uint32_t w[MatrixPlan<config>::kRows][kLanePairs];
  decode_column<config>(p, next.tiles[parity], mask, next.index, w);
  arch::wait_block();
  store_tokens(wave.tokens, next.x, wave.stages, 1 - parity);
  arch::hold_order();
  // x first: a wait for it is then not one for the weights that were asked for with it.
  load_tokens(wave.tokens, columns, column + 2, next.x);
  arch::hold_order();
  load_column(wave.weights, columns, column + 2, next.tiles[parity]);
  load_index(wave.weights, column + 1 < columns.paired ? column + 1 : columns.begin, next.index);
  arch::hold_order();
  multiply_stage(w, wave, parity, sums);
}

template <MatrixConfig config>
NF12_DEVICE void multiply_pairs(const GemmParams& p, MatrixWave<config>& wave,
                                BlockSums<config>& sums) {
  const DecodeConstants mask;
  const ColumnRange& columns = wave.columns;
  MatrixPipeline<config> next;
  load_tokens(wave.tokens, columns, columns.begin, next.x);
  arch::hold_order();  // oldest first, as the loop waits for them
  load_column(wave.weights, columns, columns.begin, next.tiles[0]);
  arch::hold_order();
  store_tokens(wave.tokens, next.x, wave.stages, 0);
  load_tokens(wave.tokens, columns, columns.begin + 1, next.x);
  arch::hold_order();
  load_column(wave.weights, columns, columns.begin + 1, next.tiles[1]);
  load_index(wave.weights, columns.begin, next.index);
  arch::signal_block();
  int column = columns.begin;
  NF12_NO_UNROLL
  do {
    multiply_column(p, mask, wave, column, 0, next, sums);
    multiply_column(p, mask, wave, column + 1, 1, next, sums);
    column += 2;
  } while (column < columns.paired);
  arch::wait_block();
}

// What has no pair, and the last column when k is not a multiple of 64: one after the other.
template <MatrixConfig config>
NF12_DEVICE void multiply_rest(const GemmParams& p, const MatrixWave<config>& wave,
                               BlockSums<config>& sums) {
  constexpr int kRows = MatrixPlan<config>::kRows;
  const DecodeConstants mask;
  NF12_NO_UNROLL
  for (int column = wave.columns.paired; column < wave.columns.end; ++column) {
    TokenPieces<config> x;
    load_tokens_checked(wave.tokens, arch::reread_arguments(p).weight.k, column, x);
    store_tokens(wave.tokens, x, wave.stages, 0);
    arch::signal_block();
    LaneTile tiles[kRows];
    NF12_UNROLL
    for (int r = 0; r < kRows; ++r)
      tiles[r] = load_tile(wave.weights.tiles[r] + int64_t{column} * kTileBytes,
                           wave.weights.signs_offset, wave.weights.codes_offset);
    uint32_t index[kRows];
    load_index(wave.weights, column, index);
    uint32_t w[kRows][kLanePairs];
    decode_column<config>(p, tiles, mask, index, w);
    arch::wait_block();
    multiply_stage(w, wave, 0, sums);
    arch::wait_block();
  }
}

template <MatrixConfig config>
NF12_DEVICE void matrix_gemm(const GemmParams& p) {
  NF12_SHARED(uint32_t, stages, 2 * MatrixPlan<config>::kStageWords);
  const Place<config> place = place_of<config>(p);
  MatrixWave<config> wave = {.columns = column_range(p),
                             .weights = open_weights(p, place),
                             .tokens = open_tokens(p, place),
                             .stages = stages,
                             .stage_word = fragment_word(arch::lane())};
  BlockSums<config> sums;
  if (wave.columns.begin < wave.columns.paired) multiply_pairs(p, wave, sums);
  multiply_rest(p, wave, sums);
  store_outputs(arch::reread_arguments(p), place, sums);
}

}  // namespace nf12
