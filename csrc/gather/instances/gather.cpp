// The compiled forms of gather, by the alignment of the output's rows in bytes.
// Compiled once per GPU target (see targets.json), never by the host compiler of the library.
#include "csrc/gather/kernel.hpp"

namespace nf12 {

#define NF12_GATHER(alignment)           \
  NF12_KERNEL(kGatherWaves* arch::kWave) \
  nf12_gather_a##alignment(GatherParams p) { gather<alignment>(p); }
NF12_GATHER(16)
NF12_GATHER(4)
NF12_GATHER(2)

}  // namespace nf12
