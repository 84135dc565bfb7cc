// GEMM on matrix cores for 17 to 64 tokens: y[t, j] = sum_k x[t, k] W[j, k], bound by the bytes of
// the weights.
//
//   - A cluster of blocks owns some tile rows and shares out their tile columns: block r of the
//     cluster has one stretch of every row. So each multiprocessor reads as many weights as any
//     other at almost every shape, and only its stretch of x, which all waves of the block share.
//   - One wave more than multiply fetches x, tile column by tile column, into a ring that all waves
//     read, as far ahead as the slowest of them allows. Barriers that count arrivals say when a
//     column is there and when its place is free, so that waves are at different steps of different
//     columns: with a barrier of the block at every column they decoded all at once, then all read
//     x, and 14 rows took 0.99 us a column instead of 0.79 (H200, 2026-11-29, m = 32).
//   - The others own a tile row each, or take turns at its columns. A wave's tiles travel to a ring
//     of its own by asynchronous copies while the one before is decoded and multiplied.
//   - Decoded, a lane's weights are its A fragments; x, read from the ring, is the B operand.
//   - At the end a wave sends its sums of a tile row to the block of the cluster that adds up that
//     row: into that block's shared memory, whose barrier counts the bytes that came.
//
// Launched with the dependent-launch attribute, a block starts while the kernel before it still
// runs: it brings its first tiles to the L2, and neither reads nor writes before the wait.
//
// Order of a sum (the reference in the tests follows it): tile columns of a wave ascending, within
// one the four steps, within a step the hardware's own order; then the waves of a block by turn,
// the blocks ascending. Not handled (cluster_takes): k off a multiple of 64, x off 16 bytes.
#pragma once
#include "csrc/gemm/cluster/config.hpp"
#include "csrc/gemm/cluster/params.hpp"
#include "csrc/gemm/cluster/plan.hpp"
#include "csrc/gemm/epilogue.hpp"
#include "csrc/gemm/stream/tiles.hpp"

namespace nf12 {

// Of a wave.
struct ClusterPlace {
  int rank, begin, columns;  // the block's tile columns
  int wave, thread;
  int first_row, own;  // the cluster's first tile row; the wave's, counted from there
  int rows;            // of the cluster that exist
  int turn, count;     // the wave's first tile column, of the block's, and how many; the next is
                       // p.turns further
};

template <ClusterConfig config>
NF12_DEVICE ClusterPlace cluster_place(const ClusterParams& p) {
  using Plan = ClusterPlan<config>;
  const int columns = tile_columns_of(p.gemm.weight), blocks = p.gemm.splits;
  ClusterPlace place;
  place.rank = arch::cluster_rank();
  place.begin = columns * place.rank / blocks;
  place.columns = columns * (place.rank + 1) / blocks - place.begin;
  place.wave = arch::wave();
  place.thread = place.wave * arch::kWave + arch::lane();
  place.first_row = arch::block_x() / blocks * p.rows;
  place.own = place.wave / p.turns;
  const int left = tile_rows_of(p.gemm.weight) - place.first_row;
  place.rows = left < p.rows ? left : p.rows;
  place.turn = place.wave % p.turns;
  const bool multiplies = place.wave < Plan::kWaves && place.own < place.rows;
  place.count = multiplies ? (place.columns - place.turn + p.turns - 1) / p.turns : 0;
  return place;
}

// What lies past the last token is zero in every column of the ring.
template <ClusterConfig config>
NF12_DEVICE void clear_tokens(int m, int thread, const arch::Shared<uint32_t>& shared) {
  using Plan = ClusterPlan<config>;
  NF12_NO_UNROLL
  for (int column = 0; column < Plan::kColumns; ++column) NF12_NO_UNROLL
  for (int i = m * Plan::kPitchWords + thread; i < Plan::kColumnWords; i += Plan::kThreads)
    shared.store(Plan::kTokenRing + column * Plan::kColumnWords + i, 0);
}

// The wave that fetches x, as far ahead of the others as the ring allows.
template <ClusterConfig config>
NF12_DEVICE void fetch_tokens(const GemmParams& p, const ClusterPlace& place,
                              const arch::Shared<uint32_t>& shared) {
  using Plan = ClusterPlan<config>;
  constexpr int kPieces = kTileColumns / 8, kTokens = arch::kWave / kPieces;  // of a round
  const int lane = arch::lane(), piece = lane % kPieces, first = lane / kPieces;
  const uint16_t* x = p.x + first * p.x_stride + place.begin * kTileColumns + 8 * piece;
  const int64_t step = kTokens * p.x_stride;
  int column = 0, phase = 0;
  NF12_NO_UNROLL
  for (int t = 0; t < place.columns; ++t, x += kTileColumns) {
    if (t >= Plan::kColumns) arch::wait_barrier(shared, Plan::kEmptied + 2 * column, phase - 1);
    const int word =
        Plan::kTokenRing + column * Plan::kColumnWords + first * Plan::kPitchWords + 4 * piece;
    const uint16_t* from = x;
    NF12_UNROLL
    for (int token = 0; token < Plan::kTokens; token += kTokens, from += step)
      arch::copy_shared16_if(token + first < p.m, shared, word + token * Plan::kPitchWords, from);
    arch::arrive_barrier_with_copies(shared, Plan::kFilled + 2 * column);
    if (++column == Plan::kColumns) column = 0, ++phase;
  }
}

template <ClusterConfig config>
struct ClusterSums {
  arch::HalfSums group[ClusterPlan<config>::kGroups];
};

template <ClusterConfig config>
NF12_DEVICE void multiply_column(int column, const arch::Shared<uint32_t>& shared,
                                 const uint32_t (&w)[kLanePairs], ClusterSums<config>& sums) {
  using Plan = ClusterPlan<config>;
  const int lane = arch::lane();
  const int x = Plan::kTokenRing + column * Plan::kColumnWords + lane / 4 * Plan::kPitchWords +
                8 * (lane % 4);
  NF12_UNROLL
  for (int group = 0; group < Plan::kGroups; ++group) {
    const int word = x + 8 * group * Plan::kPitchWords;
    const arch::Words<4> piece[2] = {arch::load_shared<4>(shared, word),
                                     arch::load_shared<4>(shared, word + 4)};
    NF12_UNROLL
    for (int step = 0; step < arch::kFragmentSteps; ++step)
      arch::multiply_half_fragment(w, step, piece[step / 2], step % 2, sums.group[group]);
  }
}

// The waves that multiply. `tile`: the first of a wave's, `index` its word.
template <ClusterConfig config>
NF12_DEVICE void multiply_tiles(const PackedView& weight, const ClusterPlace& place, int turns,
                                const arch::Shared<uint32_t>& shared, const uint8_t* tile,
                                TileIndex& index, ClusterSums<config>& sums) {
  using Plan = ClusterPlan<config>;
  constexpr int kAhead = Plan::kStages - 1;
  const int ring = Plan::kRings + place.wave * Plan::kRingWords;
  const int rest = Plan::kRest + place.wave * kRestWords;
  int next = 0;  // word of the stage that is copied to next
  const auto copy_next = [&](bool wanted) {
    copy_tile(wanted, shared, ring + next, tile);
    arch::close_copies();
    tile += turns * kTileBytes;
    next = next == kAhead * Plan::kTileWords ? 0 : next + Plan::kTileWords;
  };
  NF12_UNROLL
  for (int t = 0; t < kAhead; ++t) copy_next(t < place.count);
  open_index(weight, index, 0);

  const DecodeConstants mask;
  int stage = 0, column = place.turn, phase = 0;
  NF12_NO_UNROLL
  for (int t = 0; t < place.count; ++t) {
    arch::await_copies_but<kAhead - 1>();
    arch::sync_wave();  // the lanes see each other's copies, and have read the stage before
    copy_next(t + kAhead < place.count);
    const DecodedPlace here = {ring + stage, rest};
    uint32_t w[kLanePairs];
    decode_tile(read_tile(shared, here.tile), mask, w);
    patch_next(weight, shared, here, t, place.count, index, w);
    arch::wait_barrier(shared, Plan::kFilled + 2 * column, phase);
    multiply_column<config>(column, shared, w, sums);
    arch::sync_wave();
    if (arch::lane() == 0) arch::arrive_barrier(shared, Plan::kEmptied + 2 * column);
    stage = stage == kAhead * Plan::kTileWords ? 0 : stage + Plan::kTileWords;
    column += turns;
    if (column >= Plan::kColumns) column -= Plan::kColumns, ++phase;
  }
}

// Where a segment holds tokens 2 pair and 2 pair + 1 of a row. Pairs change places among as many as
// the power of two in their number: 12, 24, 32 pairs: 4, 8, 32.
template <int tokens>
NF12_DEVICE int segment_word(int row, int pair) {
  constexpr int kPairs = tokens / 2, kAmong = kPairs & -kPairs;
  return row * tokens + 2 * (pair ^ ((row % 2 * 8 + row / 2 % 2 * 4 + row / 4) % kAmong));
}

// A wave's sums, each tile row's to the block that adds it up.
template <ClusterConfig config>
NF12_DEVICE void hand_over(const ClusterParams& p, const ClusterPlace& place,
                           const arch::Shared<uint32_t>& shared, const ClusterSums<config>& sums) {
  using Plan = ClusterPlan<config>;
  const int lane = arch::lane(), blocks = p.gemm.splits;
  const int segment =
      Plan::kPlane +
      ((place.own / blocks * blocks + place.rank) * p.turns + place.turn) * Plan::kSegmentWords;
  NF12_UNROLL
  for (int group = 0; group < Plan::kGroups; ++group) {
    const float* values = sums.group[group].values;
    NF12_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int word =
          segment + segment_word<Plan::kTokens>(lane / 4 + 8 * half, 4 * group + lane % 4);
      const arch::Words<2> pair = {{__builtin_bit_cast(uint32_t, values[2 * half]),
                                    __builtin_bit_cast(uint32_t, values[2 * half + 1])}};
      if (blocks == 1)
        arch::store_shared8(shared, word, pair);
      else
        arch::send_shared8(place.own % blocks, shared, word, Plan::kGathered, pair);
    }
  }
}

// Outputs of the tile rows that this block adds up: a row of two tokens a lane, half a wave on 16
// rows.
template <ClusterConfig config>
NF12_DEVICE void store_outputs(const ClusterParams& p, const ClusterPlace& place,
                               const arch::Shared<uint32_t>& shared) {
  using Plan = ClusterPlan<config>;
  constexpr int kPairs = Plan::kTokens / 2;
  const int blocks = p.gemm.splits, segments = blocks * p.turns;
  const int row = place.thread % kTileRows;
  NF12_NO_UNROLL
  for (int i = place.thread / kTileRows;; i += Plan::kThreads / kTileRows) {
    const int slot = i / kPairs, pair = i % kPairs, own = slot * blocks + place.rank;
    if (own >= place.rows) return;
    const int out = (place.first_row + own) * kTileRows + row;
    if (2 * pair >= p.gemm.m || out >= static_cast<int>(p.gemm.weight.n)) continue;
    int word = Plan::kPlane + slot * segments * Plan::kSegmentWords +
               segment_word<Plan::kTokens>(row, pair);
    arch::Words<2> words = arch::load_shared<2>(shared, word);
    float sums[2] = {__builtin_bit_cast(float, words.w[0]), __builtin_bit_cast(float, words.w[1])};
    NF12_UNROLL_BY(4)
    for (int segment = 1; segment < segments; ++segment) {
      word += Plan::kSegmentWords;
      words = arch::load_shared<2>(shared, word);
      NF12_UNROLL
      for (int t = 0; t < 2; ++t) sums[t] += __builtin_bit_cast(float, words.w[t]);
    }
    const float bias = p.gemm.bias ? float_from_bf16(arch::load2(p.gemm.bias, 2 * out)) : kNoBias;
    NF12_UNROLL
    for (int t = 0; t < 2; ++t) {
      const int token = 2 * pair + t;
      if (token < p.gemm.m)
        arch::store2(p.gemm.y + token * p.gemm.y_stride + out, finish(sums[t], p.gemm.scale, bias));
    }
  }
}

template <ClusterConfig config>
NF12_DEVICE void cluster_gemm(const ClusterParams& p) {
  using Plan = ClusterPlan<config>;
  static_assert(arch::Fragments::kRuns == 2, "written for the fragments of m16n8k16");
  NF12_SHARED_AT_LAUNCH(uint32_t, shared, Plan::shared_bytes(p.rows, p.turns, p.gemm.splits) / 4);
  arch::start_successor();
  const ClusterPlace place = cluster_place<config>(p);
  const int lane = arch::lane(), blocks = p.gemm.splits;
  const PackedView& weight = p.gemm.weight;
  const int64_t row = place.first_row + place.own, column = place.begin + place.turn;
  const uint8_t* tile = weight.payload + row * weight.payload_stride_bytes + column * kTileBytes;
  TileIndex index = {.words = weight.index + row * weight.index_stride + column,
                     .step = p.turns,
                     .own = 0,
                     .listed = 0,
                     .entry = 0};
  if (place.count > 0) {
    if (lane < kTileBytes / 128) arch::prefetch(tile + 128 * lane);
    if (lane == 0) arch::prefetch(index.words);
  }
  clear_tokens<config>(p.gemm.m, place.thread, shared);
  if (place.thread < Plan::kColumns) {
    arch::open_barrier(shared, Plan::kFilled + 2 * place.thread, arch::kWave);
    arch::open_barrier(shared, Plan::kEmptied + 2 * place.thread, place.rows);
  }
  if (blocks > 1) {
    if (place.thread == 0) {
      const int owned = (place.rows - place.rank + blocks - 1) / blocks;
      arch::open_barrier(shared, Plan::kGathered, 1);
      arch::expect_bytes(shared, Plan::kGathered,
                         owned * blocks * p.turns * Plan::kSegmentWords * 4);
    }
    arch::arrive_cluster();
  }
  arch::sync_block();
  arch::await_predecessor();
  ClusterSums<config> sums = {};
  if (place.wave == Plan::kWaves) {
    fetch_tokens<config>(p.gemm, place, shared);
  } else {
    load_index(index, 0, place.count);
    multiply_tiles<config>(weight, place, p.turns, shared, tile, index, sums);
  }
  if (blocks > 1) arch::wait_cluster();  // all blocks run, and count what comes
  // A wave with no tile at all has zeros to send.
  if (place.wave < Plan::kWaves && place.own < place.rows)
    hand_over<config>(p, place, shared, sums);
  if (blocks > 1)
    arch::wait_barrier(shared, Plan::kGathered, 0);
  else
    arch::sync_block();
  store_outputs<config>(p, place, shared);
}

}  // namespace nf12
