// x of a block: from memory through registers to shared memory, and from there as B fragments.
#pragma once
#include "csrc/gemm/matrix/plan.hpp"

namespace nf12 {

using Stages = arch::Shared<uint32_t>;  // two of them, kStageWords each

// What a lane brings from x to shared memory: pieces of 8 columns, the same ones of several tokens.
template <MatrixConfig config>
struct TokenPieces {
  arch::Words<4> piece[MatrixPlan<config>::kPieces];
};

template <MatrixConfig config>
struct TokenRows {
  const uint16_t* x;  // the block's first token; uniform
  uint32_t offset[MatrixPlan<config>::kPieces];
  int column;        // the lane's first, within 64
  int shared_words;  // its first piece within a stage
};

template <MatrixConfig config>
NF12_DEVICE TokenRows<config> open_tokens(const GemmParams& p, const Place<config>& place) {
  using Plan = MatrixPlan<config>;
  const int thread = arch::wave() * arch::kWave + arch::lane();
  const int token = thread / kRowPieces;
  const int last = p.m - 1 - place.token;
  TokenRows<config> rows;
  rows.x = arch::in_register(p.x + int64_t{place.token} * p.x_stride);
  rows.column = thread % kRowPieces * kTokenPieceColumns;
  rows.shared_words = token * kPitchWords + rows.column / 2;
  NF12_UNROLL
  for (int i = 0; i < Plan::kPieces; ++i) {
    const int wanted = token + i * Plan::kPieceTokens;
    const uint32_t there = wanted < last ? wanted : last;
    rows.offset[i] = 2 * (there * static_cast<uint32_t>(p.x_stride) + rows.column);
  }
  return rows;
}

template <MatrixConfig config>
NF12_DEVICE void load_tokens(TokenRows<config>& rows, const ColumnRange& columns, int column,
                             TokenPieces<config>& x) {
  const int there = arch::in_register(column < columns.paired ? column : columns.begin);
  const uint16_t* base = rows.x + int64_t{there} * kTileColumns;
  NF12_UNROLL
  for (int i = 0; i < MatrixPlan<config>::kPieces; ++i) {
    arch::settle(rows.offset[i]);  // else widened to 64 bits once, in registers of its own
    x.piece[i] = arch::load16_anywhere(base, rows.offset[i]);
  }
}

// Zero past k. What is read in place of a column that does not exist is the first of the 64.
template <MatrixConfig config>
NF12_DEVICE void load_tokens_checked(const TokenRows<config>& rows, int64_t k, int column,
                                     TokenPieces<config>& x) {
  const uint16_t* base = arch::in_register(rows.x + int64_t{column} * kTileColumns);
  const int left = static_cast<int>(k - int64_t{column} * kTileColumns) - rows.column;
  NF12_UNROLL
  for (int i = 0; i < MatrixPlan<config>::kPieces; ++i) {
    const uint32_t first = rows.offset[i] - 2 * rows.column;
    NF12_UNROLL
    for (int j = 0; j < 4; ++j) {
      const uint32_t even = arch::load2(base, 2 * j < left ? rows.offset[i] + 4 * j : first);
      const uint32_t odd = arch::load2(base, 2 * j + 1 < left ? rows.offset[i] + 4 * j + 2 : first);
      x.piece[i].w[j] = (2 * j < left ? even : 0) | (2 * j + 1 < left ? odd << 16 : 0);
      arch::settle(x.piece[i].w[j]);  // one at a time: together they would need twice the registers
    }
  }
}

template <MatrixConfig config>
NF12_DEVICE void store_tokens(const TokenRows<config>& rows, const TokenPieces<config>& x,
                              const Stages& stages, int buffer) {
  using Plan = MatrixPlan<config>;
  NF12_UNROLL
  for (int i = 0; i < Plan::kPieces; ++i)
    arch::store_shared16(
        stages,
        buffer * Plan::kStageWords + rows.shared_words + i * Plan::kPieceTokens * kPitchWords,
        x.piece[i]);
}

// Where a lane's fragment of a stage's first 16 tokens begins.
NF12_DEVICE int fragment_word(int lane) {
  return arch::Fragments::row(lane, 0) * kPitchWords + arch::Fragments::column(lane) / 2;
}

NF12_DEVICE arch::Words<4> load_fragment(const Stages& stages, int word) {
  using arch::Fragments;
  constexpr int kRunWords = 4 / Fragments::kRuns;
  arch::Words<4> out;
  NF12_UNROLL
  for (int run = 0; run < Fragments::kRuns; ++run) {
    const int below = (Fragments::row(0, run) - Fragments::row(0, 0)) * kPitchWords;
    const arch::Words<kRunWords> words = arch::load_shared<kRunWords>(stages, word + below);
    NF12_UNROLL
    for (int i = 0; i < kRunWords; ++i) out.w[run * kRunWords + i] = words.w[i];
  }
  return out;
}

}  // namespace nf12
