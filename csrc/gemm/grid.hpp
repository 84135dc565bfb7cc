// What gemm launches have in common: the grid, and what the splits of k need besides it.
#pragma once
#include <cstdint>

#include "csrc/gemm/params.hpp"

namespace nf12 {

struct Grid {
  int64_t x, y;
  int threads;
};

inline constexpr int kCombineThreads = 256;

// FP32 partials of a launch that splits k.
constexpr int64_t workspace_floats(const GemmParams& p) {
  return p.splits > 1 ? int64_t{p.splits} * p.m * p.weight.n : 0;
}

// Of combine_splits, which follows such a launch.
constexpr Grid combine_grid(const GemmParams& p) {
  return {(p.weight.n + kCombineThreads - 1) / kCombineThreads, p.m, kCombineThreads};
}

}  // namespace nf12
