#include "csrc/gemm/fused/instances/fused.cpp"

#include "csrc/gemm/instances/combine.cpp"
#include "tests/standin/gemm_buffers.hpp"

namespace nf12::standin {
namespace {

std::vector<Buffer> combine_buffers(const GemmParams& p) {
  return {read_only(p.partials, 4 * workspace_floats(p), "partials"),
          read_only(p.bias, 2 * p.weight.n, "bias"), y_buffer(p)};
}

}  // namespace

std::vector<Kernel> fused_kernels() {
#define NF12_MODEL(m)                                                              \
  model_of<GemmParams, nf12_gemm_fused_m##m, gemm_buffers>("nf12_gemm_fused_m" #m, \
                                                           32 * fused_config(m).waves)
  return {NF12_MODEL(1),
          NF12_MODEL(2),
          NF12_MODEL(3),
          NF12_MODEL(4),
          NF12_MODEL(5),
          NF12_MODEL(6),
          NF12_MODEL(7),
          NF12_MODEL(8),
          NF12_MODEL(9),
          NF12_MODEL(10),
          NF12_MODEL(11),
          NF12_MODEL(12),
          NF12_MODEL(13),
          NF12_MODEL(14),
          NF12_MODEL(15),
          NF12_MODEL(16),
          model_of<GemmParams, nf12_gemm_combine, combine_buffers>("nf12_gemm_combine",
                                                                   kCombineThreads)};
#undef NF12_MODEL
}

}  // namespace nf12::standin
