// The compiled forms of unpack, by the alignment of the output's rows in bytes.
// Compiled once per GPU target (see targets.json), never by the host compiler of the library.
#include "csrc/unpack/kernel.hpp"

namespace nf12 {

#define NF12_UNPACK(alignment)           \
  NF12_KERNEL(kUnpackWaves* arch::kWave) \
  nf12_unpack_a##alignment(UnpackParams p) { unpack<alignment>(p); }
NF12_UNPACK(16)
NF12_UNPACK(4)
NF12_UNPACK(2)

}  // namespace nf12
