// The sums of a block and their way out: y, or the partials of a split.
#pragma once
#include "csrc/gemm/epilogue.hpp"
#include "csrc/gemm/matrix/plan.hpp"

namespace nf12 {

template <MatrixConfig config>
struct BlockSums {
  arch::MatrixSums tile[MatrixPlan<config>::kRows][MatrixPlan<config>::kTokenTiles];
};

// Sums of neighbouring rows of one token; `rows_left` of them exist. A whole run leaves as 16
// bytes.
template <int count>
NF12_DEVICE void store_partials(float* out, const float (&sums)[count], int rows_left) {
  if constexpr (count % 4 == 0) {
    if (rows_left >= count) {
      NF12_UNROLL
      for (int i = 0; i < count; i += 4) {
        arch::Words<4> words;
        NF12_UNROLL
        for (int j = 0; j < 4; ++j) words.w[j] = __builtin_bit_cast(uint32_t, sums[i + j]);
        arch::store_words<4, 4>(out + i, words);
      }
      return;
    }
  }
  NF12_UNROLL
  for (int i = 0; i < count; ++i)
    if (i < rows_left) arch::store4(out + i, sums[i]);
}

template <int count>
NF12_DEVICE void store_finished(uint16_t* out, const float (&sums)[count], float scale,
                                const float (&bias)[count], int rows_left) {
  uint32_t y[count];
  NF12_UNROLL
  for (int i = 0; i < count; ++i) y[i] = finish(sums[i], scale, bias[i]);
  if constexpr (count == 8) {
    // Not at odd elements: the emulator of tests/rdna4 executes no wider store there.
    if (rows_left >= count && reinterpret_cast<uintptr_t>(out) % 4 == 0) {
      arch::Words<4> words;
      NF12_UNROLL
      for (int i = 0; i < 4; ++i) words.w[i] = y[2 * i] | y[2 * i + 1] << 16;
      arch::store_words<4, 4>(out, words);
      return;
    }
  }
  NF12_UNROLL
  for (int i = 0; i < count; ++i)
    if (i < rows_left) arch::store2(out + i, static_cast<uint16_t>(y[i]));
}

template <MatrixConfig config>
NF12_DEVICE void store_outputs(const GemmParams& p, const Place<config>& place,
                               const BlockSums<config>& sums) {
  using Plan = MatrixPlan<config>;
  using arch::Fragments;
  constexpr int kRun = Fragments::kSumRun;
  const int lane = arch::lane();
  NF12_UNROLL
  for (int r = 0; r < Plan::kRows; ++r) {
    NF12_UNROLL
    for (int first = 0; first < arch::kFragmentSums; first += kRun) {
      const int row = place.tile_row[r] * kTileRows + Fragments::sum_row(lane, first);
      const int rows_left = static_cast<int>(p.weight.n) - row;
      float bias[kRun];
      NF12_UNROLL
      for (int i = 0; i < kRun; ++i)
        bias[i] =
            p.bias && i < rows_left ? float_from_bf16(arch::load2(p.bias, 2 * (row + i))) : kNoBias;
      NF12_UNROLL
      for (int tile = 0; tile < Plan::kTokenTiles; ++tile) {
        const int token = place.token + tile * kTokenTile + Fragments::sum_token(lane, first);
        if (token >= p.m || rows_left <= 0) continue;
        float run[kRun];
        NF12_UNROLL
        for (int i = 0; i < kRun; ++i) run[i] = sums.tile[r][tile].get(first + i);
        if (p.partials)
          store_partials(p.partials + (int64_t{arch::block_y()} * p.m + token) * p.weight.n + row,
                         run, rows_left);
        else
          store_finished(p.y + token * p.y_stride + row, run, p.scale, bias, rows_left);
      }
    }
  }
}

}  // namespace nf12
