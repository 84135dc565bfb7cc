#include "csrc/cpu/gemm/kernel.hpp"
#include "csrc/cpu/gemm/paths.hpp"
#include "csrc/cpu/gemm/vector_avx2.hpp"

namespace nf12::cpu {

const GemmKernel kGemmAvx2 = {Paths<Avx2>::workspace_bytes, Paths<Avx2>::run};

}  // namespace nf12::cpu
