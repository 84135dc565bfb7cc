// The second kernel of a split launch: y[t, j] = bf16(fma(sum over splits, 2^-s, bias[j])).
//
// One thread an output, the splits added in ascending order, so that equal calls give equal bits
// whichever block finished first. Bound by the launch itself: splits * m * n floats, written just
// before and read from the L2.
#pragma once
#include "csrc/gemm/epilogue.hpp"
#include "csrc/gemm/params.hpp"

namespace nf12 {

NF12_DEVICE void combine_splits(const GemmParams& p, int threads) {
  const int row = arch::block_x() * threads + arch::wave() * arch::kWave + arch::lane();
  if (row >= static_cast<int>(p.weight.n)) return;
  const int token = arch::block_y();
  float sum = 0;
  NF12_NO_UNROLL
  for (int split = 0; split < p.splits; ++split) {
    const int64_t slice = int64_t{split} * p.m + token;
    sum += arch::load4(p.partials + slice * p.weight.n, 4 * row);
  }
  const float bias = p.bias ? float_from_bf16(arch::load2(p.bias, 2 * row)) : kNoBias;
  arch::store2(p.y + token * p.y_stride + row, finish(sum, p.scale, bias));
}

}  // namespace nf12
