#include "csrc/gemm/matrix/instances/matrix.cpp"

#include "tests/standin/gemm_buffers.hpp"

namespace nf12::standin {

std::vector<Kernel> matrix_kernels() {
#define NF12_MODEL(tokens)                                                                     \
  model_of<GemmParams, nf12_gemm_matrix_t##tokens, gemm_buffers>("nf12_gemm_matrix_t" #tokens, \
                                                                 32 * matrix_config(tokens).waves)
  return {NF12_MODEL(16), NF12_MODEL(32), NF12_MODEL(64), NF12_MODEL(128)};
#undef NF12_MODEL
}

}  // namespace nf12::standin
