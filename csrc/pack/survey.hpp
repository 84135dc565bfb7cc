// Pack, first pass: how many weights have each biased exponent, and which mantissa bits subnormals
// use. All that the choice of the base needs to know.
//
// Bound by memory, 2 bytes a weight, as long as counting does not queue up: nearly all weights of a
// model share eight exponents, so one counter an exponent would serialise the wave. Every lane has
// its own 256 counters instead, a column of shared memory that lies in one bank:
//
//   counts[32 exponent + lane]      32 KiB a block; its waves share them, hence atomic adds
//
// Sums of integers: any order of blocks gives the same.
#pragma once
#include "csrc/pack/params.hpp"

namespace nf12 {

inline constexpr int kExponents = 256;
static_assert(kPackWaves * arch::kWave == kExponents, "in the end a thread adds up an exponent");

template <typename Counts>
NF12_DEVICE void count_exponents(const uint32_t (&w)[kLaneWords], const Counts& counts,
                                 uint32_t& subnormal_bits) {
  NF12_UNROLL
  for (const uint32_t pair : w) {
    const uint32_t even = pair >> 7 & 0xFF, odd = pair >> 23 & 0xFF;
    counts.add(static_cast<int>(even * arch::kWave) + arch::lane(), 1);
    counts.add(static_cast<int>(odd * arch::kWave) + arch::lane(), 1);
    subnormal_bits |= (even == 0 ? pair & 0x7F : 0) | (odd == 0 ? pair >> 16 & 0x7F : 0);
  }
}

template <int alignment>
NF12_DEVICE void survey(const PackParams& p) {
  NF12_SHARED(uint32_t, counts, kExponents* arch::kWave);
  const int wave = arch::wave();
  const int thread = wave * arch::kWave + arch::lane();
  NF12_NO_UNROLL
  for (int i = 0; i < arch::kWave; ++i) counts.store(i * kExponents + thread, 0);
  arch::sync_block();

  uint32_t subnormal_bits = 0;
  const uint32_t first = arch::block_x() * kPackWaves + wave;
  TilePlace place = TilePlace::of(p.steps, first);
  NF12_NO_UNROLL
  for (; place.tile < p.steps.tiles; place.advance(p.steps)) {
    uint32_t w[kLaneWords];
    load_pieces<alignment>(p.source, place, 0, w);
    count_exponents(w, counts, subnormal_bits);
  }
  if (subnormal_bits != 0) arch::atomic_or4(p.subnormal_bits, subnormal_bits);
  arch::sync_block();

  uint32_t sum = 0;
  NF12_NO_UNROLL
  for (int i = 0; i < arch::kWave; ++i)  // from its own bank on: no two lanes meet in one
    sum += counts.load(thread * arch::kWave + (i + arch::lane()) % arch::kWave);
  if (sum != 0) arch::atomic_add8(p.exponents + thread, sum);
}

}  // namespace nf12
