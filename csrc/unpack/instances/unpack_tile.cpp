// The compiled forms of unpack with a tile a wave, by the alignment of the output's rows in bytes.
// Compiled once per GPU target (see targets.json), never by the host compiler of the library.
#include "csrc/unpack/tile_kernel.hpp"

namespace nf12 {

#define NF12_UNPACK_TILE(alignment)                                \
  NF12_KERNEL_BLOCKS(kUnpackWaves* arch::kWave, kUnpackTileBlocks) \
  nf12_unpack_tile_a##alignment(UnpackParams p) { unpack_tiles<alignment>(p); }
NF12_UNPACK_TILE(16)
NF12_UNPACK_TILE(4)
NF12_UNPACK_TILE(2)

}  // namespace nf12
