// What a launch of the warpgroup kernel is given, by value.
#pragma once
#include "csrc/gemm/cluster/params.hpp"
#include "csrc/gemm/tensor_map.hpp"
#include "csrc/gemm/warpgroup/config.hpp"

namespace nf12 {

struct WarpgroupParams {
  ClusterParams cluster;  // turns: groups that take turns at the tile columns of the same rows
  int32_t tokens;         // of a block, a multiple of 16, at most those of the kernel
  TensorMap x_map;        // boxes of warpgroup_box_tokens x 64 columns
};

// A row of x that does not exist costs the tensor unit about five cycles, too many where it brings
// x as it comes (4096 x 4096, 97 tokens, 128 or 112 rows a box: 19.0 and 15.1 us; H200,
// 2026-11-30). Where x is permuted a loop of known length is worth more (72 tokens of 80: 1.01 and
// 0.98 of dense).
NF12_INLINE constexpr int warpgroup_box_tokens(const WarpgroupConfig& config, int tokens) {
  return config.permutes ? config.tokens : tokens;
}

}  // namespace nf12
