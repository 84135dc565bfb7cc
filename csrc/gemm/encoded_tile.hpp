// A lane's part of an encoded tile in shared memory, where it lies as it does in memory (sm_90a).
#pragma once
#include "csrc/arch/hopper.hpp"
#include "csrc/gemm/matrix/weights.hpp"

namespace nf12 {

// Of MmaFragments: 16 columns of rows l / 4 and l / 4 + 8. `signs`, `codes`: where those of the
// first row are, 16 bytes and 8 bytes a lane.
NF12_DEVICE void load_encoded(uint32_t signs, uint32_t codes, LaneTile& tile) {
  NF12_UNROLL
  for (int run = 0; run < 2; ++run) {
    const arch::Words<4> four = arch::load_shared16(signs + kCodesOffset / 2 * run);
    const arch::Words<2> two = arch::load_shared8(codes + kCodesOffset / 4 * run);
    NF12_UNROLL
    for (int i = 0; i < 4; ++i) tile.signs[4 * run + i] = four.w[i];
    tile.codes[2 * run] = two.w[0];
    tile.codes[2 * run + 1] = two.w[1];
  }
}

}  // namespace nf12
