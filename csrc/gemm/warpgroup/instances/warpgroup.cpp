// Every instance of the warpgroup kernel: nf12_gemm_warpgroup_t32 to _t256, for sm_90a.
// Compiled once per GPU target (see targets.json), never by the host compiler of the library.
#include "csrc/arch/hopper.hpp"
#include "csrc/gemm/warpgroup/instances/configs.hpp"

#if NF12_HOPPER
#include "csrc/gemm/warpgroup/kernel.hpp"

namespace nf12 {

#define NF12_WARPGROUP(tokens)                                      \
  NF12_KERNEL(WarpgroupPlan<warpgroup_config(tokens)>::kThreads)    \
  nf12_gemm_warpgroup_t##tokens(NF12_ARGUMENT(WarpgroupParams) p) { \
    warpgroup_gemm<warpgroup_config(tokens)>(p);                    \
  }
NF12_WARPGROUP(32)
NF12_WARPGROUP(48)
NF12_WARPGROUP(64)
NF12_WARPGROUP(80)
NF12_WARPGROUP(96)
NF12_WARPGROUP(128)
NF12_WARPGROUP(192)
NF12_WARPGROUP(256)

}  // namespace nf12
#endif
