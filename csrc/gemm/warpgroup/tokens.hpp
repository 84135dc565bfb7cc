// How x comes: boxes of the tensor unit into a ring, as far ahead as it allows. Up to 96 tokens
// waves of their own have it brought, and permute it (permute.hpp); past that, here, the waves that
// multiply have it brought between their steps, and decode in its order (weights.hpp).
#pragma once
#include "csrc/arch/hopper.hpp"
#include "csrc/gemm/warpgroup/params.hpp"
#include "csrc/gemm/warpgroup/place.hpp"
#include "csrc/gemm/warpgroup/plan.hpp"

namespace nf12 {

// A column of the ring of x, and which of its phases. Barriers tell a phase from the one before
// only, by its parity:
//
//   permuted      Everybody meets the columns in order, and what is permuted is so in that order.
//   as it comes   Copies land in any order. So a turn has the same columns round after round, a
//                 power of two of them: whoever waits for a phase has seen the one before.
struct RingPlace {
  int column = 0, phase = 0;
  NF12_DEVICE void advance(int by, int length) {
    column += by;
    if (column >= length) column -= length, ++phase;
  }
};
template <WarpgroupConfig config>
NF12_DEVICE int ring_shift(int turns) {
  constexpr int kShift = WarpgroupPlan<config>::kColumns == 8 ? 3 : 2;
  return kShift - (turns > 2 ? 2 : turns - 1);
}
template <WarpgroupConfig config>
NF12_DEVICE int ring_length(int turns) {
  using Plan = WarpgroupPlan<config>;
  return Plan::kPermutes ? Plan::kColumns : turns << ring_shift<config>(turns);
}

// One lane.
template <WarpgroupConfig config>
NF12_DEVICE void copy_column(const WarpgroupParams& p, const WarpgroupPlace& place, int t,
                             int column, const arch::Shared<uint32_t>& shared) {
  using Plan = WarpgroupPlan<config>;
  const uint32_t copied = arch::shared_address(shared, Plan::kCopied + 2 * column);
  arch::expect_bytes(copied, warpgroup_box_tokens(config, p.tokens) * (2 * kTileColumns));
  arch::copy_box(arch::shared_address(shared, Plan::kTokenRing + column * Plan::kColumnWords),
                 &p.x_map, copied, (place.begin + t) * kTileColumns, arch::block_y() * p.tokens);
}

// To bring a column takes a lane 300 cycles, for which the other waves of its group wait (H200,
// 2026-11-30). So the waves that multiply by the same columns bring them in turn.
struct Bringer {
  int next;  // the first of its steps whose column it has to bring
  int due;   // the step from which on there may be room
};

// One lane, before its wave waits for the column of step t: the columns that have to be on their
// way now or have room. The wave has seen the columns of all steps before t, so of the barrier's
// phases the one that is asked for is the last one or this.
template <WarpgroupConfig config>
NF12_DEVICE void bring_tokens(const WarpgroupParams& p, const WarpgroupPlace& place, int t,
                              const arch::Shared<uint32_t>& shared, Bringer& bringer) {
  using Plan = WarpgroupPlan<config>;
  const int turns = p.cluster.turns, shift = ring_shift<config>(turns);
  int next = bringer.next;
  bringer.due = t + 1;
  NF12_NO_UNROLL
  while (next < t + (1 << shift) && next < place.count) {
    const int column = place.turn + (next & ((1 << shift) - 1)) * turns, phase = next >> shift;
    const int read = Plan::kRead + 2 * column;
    if (phase > 0) {
      if (next == t)
        arch::wait_barrier(shared, read, phase - 1);
      else if (!arch::is_over(shared, read, phase - 1))
        return;
    }
    copy_column<config>(p, place, place.turn + next * turns, column, shared);
    next += place.row_groups * kGroupTileRows;
    bringer = {next, next - (1 << shift) + 1};
  }
}

}  // namespace nf12
