// The memory of a gemm launch.
#pragma once
#include "csrc/gemm/grid.hpp"
#include "tests/standin/kernels.hpp"

namespace nf12::standin {

inline Buffer y_buffer(const GemmParams& p) {
  return writable(p.y, 2 * ((p.m - 1) * p.y_stride + p.weight.n), "y");
}

inline std::vector<Buffer> gemm_buffers(const GemmParams& p) {
  std::vector<Buffer> buffers = weight_buffers(p.weight);
  buffers.push_back(read_only(p.x, 2 * ((p.m - 1) * p.x_stride + p.weight.k), "x"));
  buffers.push_back(read_only(p.bias, 2 * p.weight.n, "bias"));
  buffers.push_back(p.splits > 1 ? writable(p.partials, 4 * workspace_floats(p), "partials")
                                 : y_buffer(p));
  return buffers;
}

}  // namespace nf12::standin
