// The compiled forms of the cluster kernel.
#pragma once
#include "csrc/arch/target.hpp"
#include "csrc/gemm/cluster/config.hpp"

namespace nf12 {

inline constexpr int kClusterTokens[] = {24, 32, 48, 64};
inline constexpr int kClusterMostTokens = 64;

// As many waves as registers allow: 16 of them may have 128 a lane, 17 have 96.
NF12_INLINE constexpr ClusterConfig cluster_config(int tokens) {
  return {.tokens = tokens,
          .waves = tokens <= 32 ? 16 : 15,
          .stages = 3,
          .columns = tokens <= 32 ? 8 : 6};
}

}  // namespace nf12
