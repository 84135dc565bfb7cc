// The sums of a tile row: from the groups that took turns at it, through the block of the cluster
// that adds it up, to memory.
#pragma once
#include "csrc/gemm/epilogue.hpp"
#include "csrc/gemm/warpgroup/tokens.hpp"

namespace nf12 {

template <int count>
NF12_DEVICE void put_sums(uint32_t to, const float* sums) {
  NF12_UNROLL
  for (int i = 0; i < count; i += 4)
    arch::store_shared16(
        to + 128 * i + 16 * arch::lane(),
        {{__builtin_bit_cast(uint32_t, sums[i]), __builtin_bit_cast(uint32_t, sums[i + 1]),
          __builtin_bit_cast(uint32_t, sums[i + 2]), __builtin_bit_cast(uint32_t, sums[i + 3])}});
}
template <int count>
NF12_DEVICE void add_sums(uint32_t from, float* sums) {
  NF12_UNROLL
  for (int i = 0; i < count; i += 4) {
    const arch::Words<4> words = arch::load_shared16(from + 128 * i + 16 * arch::lane());
    NF12_UNROLL
    for (int j = 0; j < 4; ++j) sums[i + j] += __builtin_bit_cast(float, words.w[j]);
  }
}

// The first group of those that take turns gets what the others have, by way of their rings, once
// all lanes of a wave have read its last tile there.
template <WarpgroupConfig config>
NF12_DEVICE void join_turns(const ClusterParams& p, const WarpgroupPlace& place,
                            const arch::Shared<uint32_t>& shared,
                            float (&sums)[WarpgroupPlan<config>::kSums]) {
  using Plan = WarpgroupPlan<config>;
  const uint32_t own = arch::shared_address(shared, Plan::kRings + place.wave * Plan::kRingWords);
  NF12_UNROLL
  for (int part = 0; part < Plan::kParts; ++part) {
    float* mine = sums + part * Plan::kPartSums;
    if (part > 0)
      arch::sync_lanes<Plan::kLanes>();
    else
      arch::sync_wave();
    if (place.count > 0 && place.turn > 0) put_sums<Plan::kPartSums>(own, mine);
    arch::sync_lanes<Plan::kLanes>();
    if (place.count == 0 || place.turn > 0) continue;
    NF12_NO_UNROLL
    for (int turn = 1; turn < p.turns && turn < place.columns; ++turn)
      add_sums<Plan::kPartSums>(own + turn * kGroupTileRows * Plan::kRingWords * 4, mine);
  }
}

// To the block that adds up the row: bulk copies into its shared memory, whose barrier counts the
// bytes. Stores of eight bytes each (st.async) take 23 cycles a warp's: 4,400 at 64 tokens, instead
// of 2,000 (H200, 2026-11-30).
template <WarpgroupConfig config>
NF12_DEVICE void hand_over(int blocks, const WarpgroupPlace& place,
                           const arch::Shared<uint32_t>& shared,
                           const float (&sums)[WarpgroupPlan<config>::kSums]) {
  using Plan = WarpgroupPlan<config>;
  const int to = place.own % blocks, slot = place.own / blocks;
  const uint32_t segment = arch::shared_address(
      shared, Plan::kPlane + (slot * blocks + place.rank) * Plan::kSegmentWords);
  if (to == place.rank) {
    put_sums<Plan::kSums>(segment, sums);
    arch::sync_wave();
    if (arch::lane() == 0) arch::arrive_barrier(shared, Plan::kGathered);
    return;
  }
  const uint32_t own = arch::shared_address(shared, Plan::kRings + place.wave * Plan::kRingWords);
  NF12_UNROLL
  for (int part = 0; part < Plan::kParts; ++part) {
    if (part > 0 && arch::lane() == 0) arch::await_boxes_read<0>();
    arch::sync_wave();  // all lanes have read the last tile, and the copy has read the part before
    put_sums<Plan::kPartSums>(own, sums + part * Plan::kPartSums);
    arch::show_to_copies();
    arch::sync_wave();
    if (arch::lane() == 0)
      arch::send_bytes(to, segment + part * Plan::kPartWords * 4, own, Plan::kPartWords * 4,
                       arch::shared_address(shared, Plan::kGathered));
  }
}

// Outputs of the tile rows that this block adds up, 16 tokens of a row at a time: transposed
// through shared memory, so that a lane writes eight neighbouring outputs of a token at once.
template <WarpgroupConfig config>
NF12_DEVICE void store_outputs(const WarpgroupParams& all, const WarpgroupPlace& place,
                               const arch::Shared<uint32_t>& shared) {
  using Plan = WarpgroupPlan<config>;
  const GemmParams& p = all.cluster.gemm;
  constexpr int kParts = Plan::kTokens / 16;
  const int blocks = p.splits, lane = arch::lane(), n = static_cast<int>(p.weight.n);
  const int owned = (place.rows - place.rank + blocks - 1) / blocks;
  const uint32_t staging = arch::shared_address(shared, Plan::kRest + place.wave * kRestWords);
  const bool aligned =
      (reinterpret_cast<uintptr_t>(p.y) | static_cast<uintptr_t>(2 * p.y_stride)) % 16 == 0;
  NF12_NO_UNROLL
  for (int item = place.wave; item < owned * kParts; item += Plan::kWaves) {
    const int slot = item / kParts, part = item % kParts;
    const int first_token = arch::block_y() * all.tokens + 16 * part;
    if (16 * part >= all.tokens || first_token >= p.m) continue;
    const int first = (place.first_row + slot * blocks + place.rank) * kTileRows;
    float bias[2] = {kNoBias, kNoBias};
    if (p.bias != nullptr) {
      NF12_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = first + lane / 4 + 8 * half;
        if (row < n) bias[half] = float_from_bf16(arch::load2(p.bias + row, 0));
      }
    }
    float sums[8] = {};
    // Not unrolled: this runs once, and its code has to be fetched for that.
    NF12_NO_UNROLL
    for (int block = 0; block < blocks; ++block) {
      const int segment = Plan::kPlane + (slot * blocks + block) * Plan::kSegmentWords;
      add_sums<8>(arch::shared_address(shared, segment + part * 8 * arch::kWave), sums);
    }
    arch::Words<4> pairs;
    NF12_UNROLL
    for (int i = 0; i < 4; ++i)
      pairs.w[i] = arch::bf16_pair(__builtin_fmaf(sums[2 * i], p.scale, bias[i % 2]),
                                   __builtin_fmaf(sums[2 * i + 1], p.scale, bias[i % 2]));
    arch::sync_wave();
    // 32 bytes a token. Lane l names row l % 8 of matrix l / 8: tokens 8 (l / 16), outputs
    // 8 (l / 8 % 2) from there.
    arch::store_transposed(staging + (8 * (lane / 16) + lane % 8) * 32 + lane / 8 % 2 * 16, pairs);
    arch::sync_wave();
    const arch::Words<4> out = arch::load_shared16(staging + 16 * lane);
    const int token = first_token + lane / 2, row = first + lane % 2 * 8;
    if (token >= p.m) continue;
    uint16_t* to = p.y + token * p.y_stride + row;
    if (aligned && row + 8 <= n) {
      arch::store_words<4>(to, out);
    } else {
      NF12_UNROLL
      for (int i = 0; i < 8; ++i)
        if (row + i < n)
          arch::store2(to + i, static_cast<uint16_t>(out.w[i / 2] >> (16 * (i % 2))));
    }
  }
}

}  // namespace nf12
