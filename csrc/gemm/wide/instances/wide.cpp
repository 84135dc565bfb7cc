// Every instance of the wide kernel: nf12_gemm_wide_t128, _t192 and _t256, for sm_90a alone.
// Compiled once per GPU target (see targets.json), never by the host compiler of the library.
#include "csrc/arch/hopper.hpp"
#include "csrc/gemm/wide/instances/configs.hpp"

#if NF12_HOPPER
#include "csrc/gemm/wide/kernel.hpp"

namespace nf12 {

#define NF12_WIDE(tokens)   \
  NF12_KERNEL(kWideThreads) \
  nf12_gemm_wide_t##tokens(NF12_ARGUMENT(WideParams) p) { wide_gemm<wide_config(tokens)>(p); }
NF12_WIDE(128)
NF12_WIDE(192)
NF12_WIDE(256)

}  // namespace nf12
#endif
