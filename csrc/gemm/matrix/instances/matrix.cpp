// Every instance of the matrix kernel in one translation unit: nf12_gemm_matrix_t16, _t32, _t64 and
// _t128.
// Compiled once per GPU target (see targets.json), never by the host compiler of the library.
#include "csrc/gemm/matrix/instances/configs.hpp"
#include "csrc/gemm/matrix/kernel.hpp"

namespace nf12 {

#define NF12_MATRIX(tokens)                                                                 \
  NF12_KERNEL_OF(matrix_config(tokens).waves* arch::kWave, matrix_config(tokens).registers) \
  nf12_gemm_matrix_t##tokens(GemmParams p) { matrix_gemm<matrix_config(tokens)>(p); }
NF12_MATRIX(16)
NF12_MATRIX(32)
NF12_MATRIX(64)
NF12_MATRIX(128)

}  // namespace nf12
