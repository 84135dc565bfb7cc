// What a launch of the cluster kernel is given besides the problem, by value.
#pragma once
#include "csrc/gemm/params.hpp"

namespace nf12 {

struct ClusterParams {
  GemmParams gemm;  // rows of x at multiples of 16 bytes, k of 64; splits: blocks of a cluster
  int32_t rows;     // tile rows of a cluster, all of its blocks having the same ones
  int32_t turns;    // waves that take turns at the tile columns of one row
};

}  // namespace nf12
