// Every instance of the fused kernel in one translation unit: nf12_gemm_fused_m1 .. _m16.
// Compiled once per GPU target (see targets.json), never by the host compiler of the library.
#include "csrc/gemm/fused/instances/configs.hpp"
#include "csrc/gemm/fused/kernel.hpp"

namespace nf12 {

#define NF12_FUSED(m)                             \
  NF12_KERNEL(fused_config(m).waves* arch::kWave) \
  nf12_gemm_fused_m##m(GemmParams p) { fused_gemm<fused_config(m)>(p); }
NF12_FUSED(1)
NF12_FUSED(2)
NF12_FUSED(3)
NF12_FUSED(4)
NF12_FUSED(5)
NF12_FUSED(6)
NF12_FUSED(7)
NF12_FUSED(8)
NF12_FUSED(9)
NF12_FUSED(10)
NF12_FUSED(11)
NF12_FUSED(12)
NF12_FUSED(13)
NF12_FUSED(14)
NF12_FUSED(15)
NF12_FUSED(16)
static_assert(kFusedMaxTokens == 16);

}  // namespace nf12
