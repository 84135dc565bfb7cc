// The fused kernel with the token count known only at run time, for benchmarks/ab_fused.py: what
// the template argument of csrc/gemm/fused/kernel.hpp is worth. Never shipped.
//
// Work split, decoding, prefetch and the order of every sum are those of the shipped kernel; the
// token loop is not unrolled, so the sums are indexed by a number that no compiler knows, and the
// plane has room for 16 tokens whatever m is. Not handled: k that is no multiple of 64, rows of x
// at odd elements, splits.
#pragma once
#include "csrc/gemm/fused/kernel.hpp"

namespace nf12 {

template <GemmConfig config>
NF12_DEVICE void multiply_any_tokens(const GemmParams& p, Sums<config>& sums) {
  using Plan = FusedPlan<config>;
  const DecodeConstants mask;
  const SplitColumns columns = columns_of_split(p);
  const int begin = columns.begin + arch::wave();
  int left = (columns.end - begin + Plan::kWaves - 1) / Plan::kWaves;
  if (left <= 0) return;
  const uint32_t x_stride_bytes = arch::in_register(static_cast<uint32_t>(2 * p.x_stride));
  const uint16_t* x_columns = arch::in_register(p.x + int64_t{begin} * kTileColumns);
  WeightCursor cursor = open_rows(p.weight, begin);
  LaneRow next = load_row(cursor, true);
  NF12_NO_UNROLL
  for (; left > 0; --left) {
    uint32_t index[2];
    load_index(cursor, index);
    const LaneRow row = next;
    const int step = step_if(left - 1, Plan::kWaves);
    cursor.tiles += step * kTileBytes;
    cursor.index += step;
    next = load_row(cursor, left > 1);
    arch::hold_order();
    NF12_UNROLL
    for (int chunk = 0; chunk < Plan::kChunks; ++chunk) {
      uint32_t w[Plan::kChunk];
      decode_chunk(row, chunk, mask, w);
      patch_chunk(p, index, chunk, w);
      uint32_t x_offset = chunk * Plan::kChunk * 4;
      NF12_NO_UNROLL
      for (int t = 0; t < p.m; ++t) {
        const arch::Words<16> x = arch::uniform_load<16>(x_columns, x_offset);
        x_offset = arch::in_register(x_offset + x_stride_bytes);
        NF12_UNROLL
        for (int i = 0; i < Plan::kChunk; ++i)
          sums.acc[t][i % 2] = arch::dot2(w[i], x.w[i], sums.acc[t][i % 2]);
      }
    }
    x_columns += step * kTileColumns;
  }
}

template <GemmConfig config>
NF12_DEVICE void fused_gemm_any_tokens(const GemmParams& p) {
  using Plan = FusedPlan<config>;
  static_assert(Plan::kChunk == 16, "one scalar load of x serves a chunk");
  NF12_SHARED(float, plane, Plan::kPlaneFloats);
  Sums<config> sums = {};
  multiply_any_tokens(p, sums);
  const auto place = [](int wave, int t) {
    return (wave * Plan::kTokens + t) * Plan::kBlockRows + arch::lane();
  };
  NF12_NO_UNROLL
  for (int t = 0; t < p.m; ++t)
    plane.store(place(arch::wave(), t), sums.acc[t][0] + sums.acc[t][1]);
  arch::sync_block();
  const int row = arch::block_x() * Plan::kBlockRows + arch::lane();
  if (row >= static_cast<int>(p.weight.n)) return;
  NF12_NO_UNROLL
  for (int t = arch::wave(); t < p.m; t += Plan::kWaves) {
    float sum = 0;
    NF12_UNROLL
    for (int wave = 0; wave < Plan::kWaves; ++wave) sum += plane.load(place(wave, t));
    const float bias = p.bias ? float_from_bf16(arch::load2(p.bias, 2 * row)) : kNoBias;
    arch::store2(p.y + t * p.y_stride + row, finish(sum, p.scale, bias));
  }
}

}  // namespace nf12
