// The instance of the kernel that decodes once: nf12_gemm_once_t256, for sm_90a alone.
// Compiled once per GPU target (see targets.json), never by the host compiler of the library.
#include "csrc/arch/hopper.hpp"
#include "csrc/gemm/wide/instances/configs.hpp"

#if NF12_HOPPER
#include "csrc/gemm/wide/once.hpp"

namespace nf12 {

NF12_KERNEL(kWideThreads)
nf12_gemm_once_t256(NF12_ARGUMENT(OnceParams) p) { once_gemm<kOnceTokens>(p); }

}  // namespace nf12
#endif
