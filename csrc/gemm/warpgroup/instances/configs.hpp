// The compiled forms of the warpgroup kernel.
#pragma once
#include "csrc/arch/target.hpp"
#include "csrc/gemm/warpgroup/config.hpp"

namespace nf12 {

inline constexpr int kWarpgroupTokens[] = {32, 48, 64, 80, 96, 128, 192, 256};
inline constexpr int kWarpgroupMostTokens = 256;

// As many groups as registers allow that hold the sums and the fragments. Geomeans to dense over
// eight shapes, each form with its best shapes, of x permuted and of x as it comes (H200,
// 2026-11-30): 32 tokens 1.17 and 1.07; 64 tokens 1.09 and 1.02; 96 tokens 0.95 and 0.94; 128
// tokens 0.80, with three groups, and 0.86.
NF12_INLINE constexpr WarpgroupConfig warpgroup_config(int tokens) {
  return {.tokens = tokens,
          .groups = tokens <= 128   ? 4
                    : tokens == 192 ? 3
                                    : 2,
          .stages = 3,
          .columns = tokens <= 64    ? 8
                     : tokens == 80  ? 5
                     : tokens == 128 ? 8
                                     : 4,
          .permutes = tokens <= 96};
}

}  // namespace nf12
