// The compiled forms of the warpgroup kernel.
#pragma once
#include "csrc/arch/target.hpp"
#include "csrc/gemm/warpgroup/config.hpp"

namespace nf12 {

inline constexpr int kWarpgroupTokens[] = {32, 48, 64, 80, 96, 128};

// Four groups while their registers hold the sums and two sets of fragments: 104 a lane, 112 for
// 96 tokens. Three have 152.
NF12_INLINE constexpr WarpgroupConfig warpgroup_config(int tokens) {
  return {.tokens = tokens,
          .groups = tokens <= 96 ? 4 : 3,
          .stages = 3,
          .columns = tokens <= 64   ? 8
                     : tokens == 80 ? 5
                                    : 4};
}

}  // namespace nf12
