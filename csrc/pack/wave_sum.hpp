// Sums over a wave by ballots: the same on every GPU, and no lane waits for another one's memory.
#pragma once
#include <bit>

#include "csrc/arch/target.hpp"

namespace nf12 {

struct WaveSum {
  uint32_t before;  // of the lanes below this one
  uint32_t total;
};

// Of values below 2^bits.
template <int bits>
NF12_DEVICE WaveSum wave_sum(uint32_t value) {
  const uint32_t below = (1u << arch::lane()) - 1;
  WaveSum sum = {0, 0};
  NF12_UNROLL
  for (int bit = 0; bit < bits; ++bit) {
    const uint32_t lanes = arch::ballot(value >> bit & 1);
    sum.before += static_cast<uint32_t>(std::popcount(lanes & below)) << bit;
    sum.total += static_cast<uint32_t>(std::popcount(lanes)) << bit;
  }
  return sum;
}

// Of all values, modulo 2^32. Rolled up: its callers are rare paths.
NF12_DEVICE uint32_t wave_total(uint32_t value) {
  uint32_t total = 0;
  NF12_NO_UNROLL
  for (int bit = 0; bit < 32; ++bit)
    total += static_cast<uint32_t>(std::popcount(arch::ballot(value >> bit & 1))) << bit;
  return total;
}

}  // namespace nf12
