// The three waves of a block that bring what the others multiply, each as far ahead as its ring
// allows: x and the encoded tiles by boxes of the tensor unit, lists by bulk copies; and what other
// blocks have of a tile, through the ring of x.
//
// Weights do not go through loads: the fence after each decoded tile would wait for them (1,790
// cycles a k-block against 2,000, H200, 2026-11-29).
#pragma once
#include "csrc/arch/hopper.hpp"
#include "csrc/gemm/wide/plan.hpp"
#include "csrc/gemm/wide/walk.hpp"

namespace nf12 {

// Place in a ring of `stages`; parity: of the phase to wait for.
template <int stages>
struct WideRing {
  int stage;
  uint32_t parity;
  // That of the k-block with this number, of a block's. Where all waves count the same, ptxas keeps
  // what follows from it in scalar registers.
  NF12_DEVICE static WideRing at(int number) {
    const auto n = static_cast<uint32_t>(number);
    return {static_cast<int>(n % stages), n / stages & 1};
  }
  NF12_DEVICE void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The first tile row of a tile of outputs.
NF12_DEVICE int first_tile_row(const WideParams& p, const WideWalk& walk) {
  return walk.tile / p.token_tiles * kWideTileRows;
}
NF12_DEVICE int first_token(const WideParams& p, const WideWalk& walk, int tokens) {
  return walk.tile % p.token_tiles * tokens;
}

// What a group of a block leaves for the owner of a tile.
template <WideConfig config>
NF12_DEVICE float* partials_of(const WideParams& p, int block, int group) {
  return p.gemm.partials + (int64_t{block} * kWideGroups + group) * WidePlan<config>::kGroupFloats;
}

// One lane. Flags are down again once they were seen, for the next launch that is given the same
// memory with the same word (a graph that is replayed).
template <WideConfig config>
NF12_DEVICE void copy_sums(const WideParams& p, uint32_t shared, const WideWalk& walk,
                           WideRing<WidePlan<config>::kTokenStages>& ring) {
  using Plan = WidePlan<config>;
  const int block = arch::block_x();
  NF12_NO_UNROLL
  for (int other = walk.first_helper(p, block); other < block; ++other) {
    NF12_UNROLL
    for (int group = 0; group < kWideGroups; ++group) {
      uint64_t* flag = p.flags + other * kWideGroups + group;
      arch::await_flag(flag, p.flag);
      *flag = 0;
    }
    NF12_NO_UNROLL
    for (int part = 0; part < Plan::kSumParts; ++part) {
      const uint32_t filled = shared + Plan::kTokensFilled + 8 * ring.stage;
      const uint32_t to = shared + Plan::kTokenRing + ring.stage * Plan::kTokenBytes;
      arch::wait_barrier(shared + Plan::kTokensRead + 8 * ring.stage, ring.parity);
      arch::expect_bytes(filled, Plan::kTokenBytes);
      NF12_UNROLL
      for (int group = 0; group < kWideGroups; ++group)
        arch::copy_bytes(to + group * Plan::kPartBytes,
                         partials_of<config>(p, other, group) + part * (Plan::kPartBytes / 4),
                         Plan::kPartBytes, filled);
      ring.advance();
    }
  }
}

// One lane.
template <WideConfig config>
NF12_DEVICE void copy_tokens(const WideParams& p, uint32_t shared, WideWalk walk) {
  using Plan = WidePlan<config>;
  WideRing<Plan::kTokenStages> ring = {0, 1};
  NF12_NO_UNROLL
  while (walk.next()) {
    const int token = first_token(p, walk, Plan::kTokens);
    NF12_NO_UNROLL
    for (int column = walk.first; column < walk.last; ++column) {
      const uint32_t filled = shared + Plan::kTokensFilled + 8 * ring.stage;
      arch::wait_barrier(shared + Plan::kTokensRead + 8 * ring.stage, ring.parity);
      arch::expect_bytes(filled, Plan::kTokenBytes);
      arch::copy_box(shared + Plan::kTokenRing + ring.stage * Plan::kTokenBytes, &p.x_map, filled,
                     column * kWideColumns, token);
      ring.advance();
    }
    if (walk.gathers()) copy_sums<config>(p, shared, walk, ring);
  }
}

// One lane. Tile rows past the last come as zeros.
template <WideConfig config>
NF12_DEVICE void copy_encoded(const WideParams& p, uint32_t shared, WideWalk walk) {
  using Plan = WidePlan<config>;
  constexpr int kElements = kTileBytes / 8;
  WideRing<Plan::kEncodedStages> ring = {0, 1};
  NF12_NO_UNROLL
  while (walk.next()) {
    const int row = first_tile_row(p, walk);
    NF12_NO_UNROLL
    for (int column = walk.first; column < walk.last; ++column) {
      const uint32_t filled = shared + Plan::kEncodedFilled + 8 * ring.stage;
      arch::wait_barrier(shared + Plan::kEncodedRead + 8 * ring.stage, ring.parity);
      arch::expect_bytes(filled, kWideTileRows * kTileBytes);
      arch::copy_box(shared + Plan::kEncoded + ring.stage * Plan::kEncodedBytes, &p.encoded_map,
                     filled, column * kElements, row);
      ring.advance();
    }
  }
}

// A whole wave. Lane l holds the index words of tile row l % 8, k-block l / 8 of four, and those of
// the four after: read when the last four began. Lanes 0 to 7 pass on their tile's word, 0 where it
// names nothing or what lies outside the table, and copy its first entries.
template <WideConfig config>
NF12_DEVICE void copy_lists(const WideParams& p, uint32_t shared, WideWalk walk) {
  using Plan = WidePlan<config>;
  constexpr int kAhead = arch::kWave / kWideTileRows;
  const PackedView& weight = p.gemm.weight;
  const int lane = arch::lane(), own = lane % kWideTileRows, ahead = lane / kWideTileRows;
  const bool copies = lane < kWideTileRows;
  WideRing<Plan::kEncodedStages> ring = {0, 1};
  NF12_NO_UNROLL
  while (walk.next()) {
    const int row = first_tile_row(p, walk) + own, last_row = tile_rows_of(weight) - 1;
    const uint32_t* index =
        weight.index + (row < last_row ? row : last_row) * weight.index_stride + walk.first;
    const int count = walk.last - walk.first;
    const auto word_at = [&](int at) {
      return at < count ? arch::load_words<1>(index + at).w[0] : 0;
    };
    uint32_t now = 0, next = word_at(ahead);
    NF12_NO_UNROLL
    for (int t = 0; t < count; ++t) {
      if (t % kAhead == 0) {
        now = next;
        next = word_at(t + kAhead + ahead);
      }
      IndexWord word = IndexWord::from_bits(arch::from_lane(now, t % kAhead * kWideTileRows + own));
      if (!word.is_inside(weight.quads)) word = {0, 0};
      constexpr uint32_t kFetchedQuads = kFetchedEntries / kEntriesPerQuad;
      const uint32_t quads = word.quads() < kFetchedQuads ? word.quads() : kFetchedQuads;
      const uint32_t bytes = copies && word.is_listed() ? 16 * quads : 0;
      const uint32_t bytes_of_all = arch::wave_sum(bytes);
      const uint32_t filled = shared + Plan::kEncodedFilled + 8 * ring.stage;
      arch::wait_barrier(shared + Plan::kEncodedRead + 8 * ring.stage, ring.parity);
      if (copies)
        arch::store_shared4(shared + Plan::kEncoded + ring.stage * Plan::kEncodedBytes +
                                Plan::kIndexWords + 4 * own,
                            word.bits());
      arch::sync_wave();
      // Its arrival shows the words, and comes before the entries that it counts.
      if (lane == 0) arch::expect_bytes(filled, bytes_of_all);
      arch::sync_wave();
      if (bytes != 0)
        arch::copy_bytes(shared + Plan::kEncoded + ring.stage * Plan::kEncodedBytes + Plan::kLists +
                             own * Plan::kListBytes,
                         weight.escapes + int64_t{word.quad} * kEntriesPerQuad, bytes, filled);
      ring.advance();
    }
  }
}

}  // namespace nf12
