// Values that cross the policies: a few 32-bit registers of one lane.
#pragma once
#include <cstdint>

namespace nf12::arch {

inline constexpr int kWave = 32;
inline constexpr int kMostClusterBlocks = 8;  // that every GPU with clusters takes

// `count` registers. Sixteen-byte alignment only matters where they lie in memory.
template <int count>
struct Words {
  uint32_t w[count];
};

}  // namespace nf12::arch
