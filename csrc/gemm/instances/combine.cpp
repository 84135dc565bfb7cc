// The compiled form of combine, which ends every split launch, fused or matrix.
// Compiled once per GPU target (see targets.json), never by the host compiler of the library.
#include "csrc/gemm/combine.hpp"
#include "csrc/gemm/grid.hpp"

namespace nf12 {

NF12_KERNEL(kCombineThreads) nf12_gemm_combine(GemmParams p) { combine_splits(p, kCombineThreads); }

}  // namespace nf12
