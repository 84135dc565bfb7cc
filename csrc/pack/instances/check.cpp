// The compiled form of check.
// Compiled once per GPU target (see targets.json), never by the host compiler of the library.
#include "csrc/pack/check.hpp"

namespace nf12 {

NF12_KERNEL(kCheckWaves* arch::kWave) nf12_check(CheckParams p) { check_tiles(p); }

}  // namespace nf12
