#include "csrc/cpu/gemm/kernel.hpp"
#include "csrc/cpu/gemm/paths.hpp"
#include "csrc/cpu/gemm/vector_avx512.hpp"

namespace nf12::cpu {

const GemmKernel kGemmAvx512 = {Paths<Avx512>::workspace_bytes, Paths<Avx512>::run};

}  // namespace nf12::cpu
