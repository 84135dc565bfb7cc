// The fused kernel with its token loop written once, the number of tokens known when it is compiled
// or only when it runs, for benchmarks/ab_fused.py: that is the one difference. Never shipped.
//
// Work split, decoding, prefetch and the order of every sum are those of
// csrc/gemm/fused/kernel.hpp; x is not fetched ahead. With the number unknown the loop cannot be
// unrolled, so that the sums are indexed by a number no compiler knows, and the plane has room for
// 16 tokens whatever m is. Not handled: k that is no multiple of 64, rows of x at odd elements,
// splits.
#pragma once
#include "csrc/gemm/fused/kernel.hpp"

namespace nf12 {

enum class TokenCount { kCompileTime, kRunTime };

// body(t) for each token.
template <GemmConfig config, TokenCount known, typename Body>
NF12_DEVICE void for_tokens(const GemmParams& p, int first, int step, const Body& body) {
  if constexpr (known == TokenCount::kCompileTime) {
    NF12_UNROLL
    for (int t = 0; t < config.tokens; t += step)
      if (first + t < config.tokens) body(first + t);
  } else {
    NF12_NO_UNROLL
    for (int t = first; t < p.m; t += step) body(t);
  }
}

template <GemmConfig config, TokenCount known>
NF12_DEVICE void multiply_tokens(const GemmParams& p, Sums<config>& sums) {
  using Plan = FusedPlan<config>;
  static_assert(Plan::kChunk == 16, "one scalar load of x serves a chunk");
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
      for_tokens<config, known>(p, 0, 1, [&](int t) {
        const arch::Words<16> x = arch::uniform_load<16>(x_columns, x_offset);
        x_offset = arch::in_register(x_offset + x_stride_bytes);
        NF12_UNROLL
        for (int i = 0; i < Plan::kChunk; ++i)
          sums.acc[t][i % 2] = arch::dot2(w[i], x.w[i], sums.acc[t][i % 2]);
      });
    }
    x_columns += step * kTileColumns;
  }
}

template <GemmConfig config, TokenCount known>
NF12_DEVICE void fused_gemm_tokens(const GemmParams& p) {
  using Plan = FusedPlan<config>;
  NF12_SHARED(float, plane, Plan::kPlaneFloats);
  Sums<config> sums = {};
  multiply_tokens<config, known>(p, sums);
  const auto place = [](int wave, int t) {
    return (wave * Plan::kTokens + t) * Plan::kBlockRows + arch::lane();
  };
  for_tokens<config, known>(p, 0, 1, [&](int t) {
    plane.store(place(arch::wave(), t), sums.acc[t][0] + sums.acc[t][1]);
  });
  arch::sync_block();
  const int row = arch::block_x() * Plan::kBlockRows + arch::lane();
  if (row >= static_cast<int>(p.weight.n)) return;
  for_tokens<config, known>(p, arch::wave(), Plan::kWaves, [&](int t) {
    float sum = 0;
    NF12_UNROLL
    for (int wave = 0; wave < Plan::kWaves; ++wave) sum += plane.load(place(wave, t));
    const float bias = p.bias ? float_from_bf16(arch::load2(p.bias, 2 * row)) : kNoBias;
    arch::store2(p.y + t * p.y_stride + row, finish(sum, p.scale, bias));
  });
}

}  // namespace nf12
