// GEMM for 17 to 256 tokens on the matrix unit of sm_90a: y[t, j] = sum_k x[t, k] W[j, k], bound by
// the bytes of the weights; past 128 tokens by what a wave does for a tile.
//
// What the cluster kernel does, with instructions that four waves issue together and that read x
// from shared memory once for 64 rows of W instead of 16:
//
//   - A cluster of blocks owns some tile rows and shares out their tile columns: block r of the
//     cluster has one stretch of every row. Past the kernel's number of tokens, rows of the grid
//     share out the tokens.
//   - A wave has a tile row, four waves are a group; groups own rows of their own, or take turns at
//     the columns of the same ones. A wave's tiles travel to a ring of its own by asynchronous
//     copies. Decoded, a lane's weights are its A fragments: they stay in registers.
//   - The tensor unit brings x. Up to 96 tokens one more group permutes it to the order in which
//     lanes decode (permute.hpp), past that lanes decode in the order of x (weights.hpp).
//   - At the end the sums of a tile row meet in the block that adds them up (sums.hpp).
//
//        payload --> rings of the waves --> registers (A) --+
//                                                            +--> sums in registers
//        x --> ring, permuted in place ----------------(B) --+
//
// The four waves of a group wait for one another at every tile: what delays one, as a list does,
// delays four. So lists are fetched a tile ahead, and where an entry goes is known before the tile
// is stored.
//
// Launched with the dependent-launch attribute, a block starts while the kernel before it still
// runs: it brings its first tiles to the L2, and neither reads nor writes before the wait.
//
// Order of a sum: tile columns of a group ascending, the hardware's own order within one; then the
// groups by turn, the blocks ascending. Equal launches give equal bits. Not handled
// (warpgroup_takes): k off a multiple of 64, x off 16 bytes, rows of x that overlap.
#pragma once
#include "csrc/gemm/warpgroup/lists.hpp"
#include "csrc/gemm/warpgroup/permute.hpp"
#include "csrc/gemm/warpgroup/sums.hpp"
#include "csrc/gemm/warpgroup/weights.hpp"

namespace nf12 {

// The waves that multiply. `tile`: the first of a wave's, `index` its word.
template <WarpgroupConfig config>
NF12_DEVICE void multiply_tiles(const WarpgroupParams& p, const WarpgroupPlace& place,
                                const arch::Shared<uint32_t>& shared, const uint8_t* tile,
                                TileIndex& index, float (&sums)[WarpgroupPlan<config>::kSums]) {
  using Plan = WarpgroupPlan<config>;
  using Tiles = WaveTiles<Plan::kPermutes>;
  constexpr int kAhead = Plan::kStages - 1;
  constexpr uint32_t kLastStage = kAhead * kTileBytes;
  const PackedView& weight = p.cluster.gemm.weight;
  const int turns = p.cluster.turns, lane = arch::lane();
  const int ring = Plan::kRings + place.wave * Plan::kRingWords;
  const int rest = Plan::kRest + place.wave * kRestWords;
  const Tiles tiles(arch::shared_address(shared, ring));
  tile += 16 * lane;
  const auto copy_next = [&](bool wanted, uint32_t stage) {
    if (wanted) tiles.copy(stage, tile);
    arch::close_copies();
    tile += turns * kTileBytes;
  };
  Bringer bringer = {place.own, INT32_MAX};
  if (!Plan::kPermutes && lane == 0) bring_tokens<config>(p, place, 0, shared, bringer);
  NF12_UNROLL
  for (int t = 0; t < kAhead; ++t) copy_next(place.has_row && t < place.count, t * kTileBytes);
  open_index<kBatchTiles>(weight, index, 0);

  const uint32_t tokens = arch::shared_address(shared, Plan::kTokenRing);
  const int copied = place.has_row ? place.count - kAhead : 0;  // steps that copy one more
  int length = ring_length<config>(turns);
  arch::hold(length);
  RingPlace column = {.column = place.turn};
  uint32_t stage = 0, stage_before = kLastStage;
  int column_before = 0;
  // All that was multiplied so far is over: its weights' registers are free, and its column of x.
  const auto finish = [&](bool any) {
    arch::await_products<0>();
    if (any && lane == 0) arch::arrive_barrier(shared, Plan::kRead + 2 * column_before);
  };
  const auto patch = [&](int t, uint32_t (&w)[kLanePairs]) {
    const DecodedPlace here = {ring + static_cast<int>(stage / 4), rest};
    patch_listed<typename Tiles::Fragments>(weight, shared, here, t, place.count, index, w);
  };
  const auto decode = [&](int t, uint32_t (&w)[kLanePairs]) {
    if constexpr (Plan::kPermutes) {
      if (place.has_row) tiles.decode(stage, w);
      if (place.has_row) patch(t, w);
      // Now, and not when the next tile is multiplied: the copies of x may wait for that column
      // before they bring the one that this tile needs.
      finish(t > 0);
    } else {
      arch::await_products<1>();  // of the tile before: the first half's
      if (place.has_row) tiles.template decode<0>(stage, w);
      finish(t > 0);
      if (place.has_row) tiles.template decode<1>(stage, w);
      if (place.has_row) patch(t, w);
    }
  };
  // Instructions that are awaited together.
  constexpr int kAwaited = Plan::kPermutes ? arch::kFragmentSteps : arch::kFragmentSteps / 2;
  const auto step = [&](int t, uint32_t (&w)[kLanePairs]) {
    arch::await_copies_but<kAhead - 1>();
    arch::sync_wave();  // the lanes see each other's copies, and have read the stage before
    copy_next(t < copied, stage_before);
    decode(t, w);
    if (!Plan::kPermutes && t >= bringer.due) bring_tokens<config>(p, place, t, shared, bringer);
    arch::wait_barrier(shared, Plan::kReady + 2 * column.column, column.phase);
    const uint32_t x = arch::operand_at(tokens + column.column * (4 * Plan::kColumnWords));
    NF12_UNROLL
    for (int i = 0; i < arch::kFragmentSteps; ++i) {
      if (i % kAwaited == 0) arch::open_products();
      arch::multiply_fragment(sums, w, i, x + i * arch::kOperandStep);
      if (i % kAwaited == kAwaited - 1) arch::close_products();
    }
    column_before = column.column;
    stage_before = stage;
    stage = stage == kLastStage ? 0 : stage + kTileBytes;
    column.advance(turns, length);
  };
  uint32_t w[Plan::kSets][kLanePairs] = {};
  NF12_NO_UNROLL
  for (int t = 0; t < place.count; t += Plan::kSets) {
    step(t, w[0]);
    if constexpr (Plan::kSets == 2)
      if (t + 1 < place.count) step(t + 1, w[1]);
  }
  finish(true);
  arch::settle_sums(sums);
}

// Before the wait: the first tiles to the L2, and all barriers.
template <WarpgroupConfig config>
NF12_DEVICE void open_block(const WarpgroupParams& p, const WarpgroupPlace& place,
                            const arch::Shared<uint32_t>& shared, const uint8_t* tile,
                            const TileIndex& index) {
  using Plan = WarpgroupPlan<config>;
  const int lane = arch::lane(), thread = place.wave * arch::kWave + lane;
  const int blocks = p.cluster.gemm.splits;
  if (place.has_row) {
    if (lane < kTileBytes / 128) arch::prefetch(tile + 128 * lane);
    if (lane == 0) arch::prefetch(index.words);
  }
  if (thread == Plan::kThreads - arch::kGroupLanes) arch::prefetch_map(&p.x_map);
  if (thread < Plan::kColumns) {
    arch::open_barrier(shared, Plan::kCopied + 2 * thread, 1);
    if constexpr (Plan::kPermutes)
      arch::open_barrier(shared, Plan::kReady + 2 * thread, Plan::kPermuters);
    arch::open_barrier(shared, Plan::kRead + 2 * thread, place.row_groups * kGroupTileRows);
  }
  if (thread == 0) {
    const int owned = (place.rows - place.rank + blocks - 1) / blocks;
    arch::open_barrier(shared, Plan::kGathered, 1 + owned);
    arch::expect_bytes(shared, Plan::kGathered, owned * (blocks - 1) * Plan::kSegmentWords * 4);
  }
  if (blocks > 1 && !Plan::kSumsReplaceTokens)
    arch::arrive_cluster();
  else
    arch::show_barriers();
}

template <WarpgroupConfig config>
NF12_DEVICE void warpgroup_gemm(const WarpgroupParams& all) {
  using Plan = WarpgroupPlan<config>;
  static_assert(arch::Fragments::kRuns == 2 && arch::kGroupWaves == kGroupTileRows);
  NF12_SHARED_ALIGNED(shared);
  const ClusterParams& p = all.cluster;
  arch::start_successor();
  const WarpgroupPlace place = warpgroup_place<config>(p);
  const PackedView& weight = p.gemm.weight;
  const int64_t row = place.first_row + (place.has_row ? place.own : 0);
  const int64_t column = place.begin + place.turn;
  const uint8_t* tile = weight.payload + row * weight.payload_stride_bytes + column * kTileBytes;
  TileIndex index = {.words = weight.index + row * weight.index_stride + column,
                     .step = p.turns,
                     .own = 0,
                     .listed = 0,
                     .entry = 0};
  open_block<config>(all, place, shared, tile, index);
  arch::sync_block();
  arch::await_predecessor();
  if (Plan::kPermutes && place.wave >= Plan::kWaves) {
    if constexpr (Plan::kTradesRegisters) arch::give_registers<Plan::kTokenRegisters>();
    const int own = place.wave - Plan::kWaves;
    if (own == 0 && arch::lane() == 0) copy_tokens<config>(all, place, shared);
    if (own > 0 && own <= Plan::kPermuters) permute_tokens<config>(place, own - 1, shared);
    return;
  }
  if constexpr (Plan::kTradesRegisters) arch::take_registers<Plan::kRegisters>();
  float sums[Plan::kSums] = {};
  if (place.count > 0) {
    load_index<kBatchTiles>(index, 0, place.has_row ? place.count : 0);
    multiply_tiles<config>(all, place, shared, tile, index, sums);
  }
  if constexpr (Plan::kSumsReplaceTokens) arch::release_cluster();
  if (p.turns > 1) join_turns<config>(p, place, shared, sums);
  // All blocks count what comes and, where it comes in the place of x, read that no more.
  if (Plan::kSumsReplaceTokens || p.gemm.splits > 1) arch::wait_cluster();
  const bool hands_over = place.has_row && place.turn == 0;
  if (hands_over) hand_over<config>(p.gemm.splits, place, shared, sums);
  arch::wait_barrier(shared, Plan::kGathered, 0);
  store_outputs<config>(all, place, shared);
  if (hands_over && arch::lane() == 0) arch::await_boxes_read<0>();
}

}  // namespace nf12
