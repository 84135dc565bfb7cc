// From ids and a packed weight to the launch of a gather kernel. Host code; pure.
#pragma once
#include <algorithm>

#include "csrc/gather/kernel.hpp"

namespace nf12 {

// Fills in the grid, x * y blocks of kGatherWaves waves; any other grid is right as well.
inline void gather_grid(GatherParams& p) {
  constexpr int64_t kMostX = 1 << 20, kMostY = 1 << 15;
  const int64_t columns = (p.weight.k + kGatherBlockColumns - 1) / kGatherBlockColumns;
  p.blocks_x = static_cast<int32_t>(std::clamp(p.count, int64_t{1}, kMostX));
  p.blocks_y = static_cast<int32_t>(std::clamp(columns, int64_t{1}, kMostY));
}

// Which of the instances nf12_gather_a16, _a4, _a2 may write `out`.
inline int gather_alignment(const GatherParams& p) {
  return alignment_of(reinterpret_cast<uintptr_t>(p.out) | p.out_row_stride * 2);
}

}  // namespace nf12
