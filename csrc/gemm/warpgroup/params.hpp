// What a launch of the warpgroup kernel is given, by value.
#pragma once
#include "csrc/gemm/cluster/params.hpp"
#include "csrc/gemm/tensor_map.hpp"

namespace nf12 {

struct WarpgroupParams {
  ClusterParams cluster;  // turns: groups that take turns at the tile columns of the same rows
  TensorMap x_map;        // boxes of all tokens of the kernel x 64 columns
};

}  // namespace nf12
