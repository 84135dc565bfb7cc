#include "csrc/cpu/gemm/kernel.hpp"
#include "csrc/cpu/gemm/paths.hpp"
#include "csrc/cpu/gemm/vector_avx512_bf16.hpp"

namespace nf12::cpu {

const GemmKernel kGemmAvx512Bf16 = {Paths<Avx512Bf16>::workspace_bytes, Paths<Avx512Bf16>::run};

}  // namespace nf12::cpu
