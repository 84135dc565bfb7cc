// Streaming GEMM for up to 32 tokens on matrix cores: y[t, j] = sum_k x[t, k] W[j, k].
//
// Bound by the bytes of the weights. One block a multiprocessor, for the whole launch:
//   - A block has one stretch of tiles, in memory order: whole tile rows, or as many tiles as any
//     other block. They are shared out to the waves in equal runs: each wave reads one stretch of
//     memory from end to end, whatever rows it crosses. There is no second round of blocks and no
//     wave that waits for another until all are done.
//   - A tile travels to shared memory by asynchronous copies while the one before it is decoded and
//     multiplied: 1.5 KB in flight a wave, 48 KB a multiprocessor. More is slower: everything
//     else that is read (x, the index, lists) then waits behind it (H200, 2026-11-29, m = 1,
//     4096 x 4096, us: one tile ahead 10.0, two 11.5, three 13.2).
//   - Decoded, a lane's weights are its A fragments. x is the B operand: read from the cache when
//     the tile before it is multiplied, past no barrier.
//   - A wave's sums of a tile row that starts or ends in another wave meet in a plane of shared
//     memory, which is added up in the order of the waves.
//   - The block with the last tile of a row writes its outputs. It gets the sums of those with
//     earlier tiles through memory, each with a word that says so: nobody waits for a block that
//     has not started, as long as blocks start in order.
//
//   tiles of a block   row 0 |0 1 2 3 . . . |   row 1 |. . . . |
//   waves                    |w0 |w1  |w2   |w3  .. |        every wave as many, give or take one
//   plane of a wave          [1]: the row that starts in it    [0]: the row that began before it
//
// Launched with the dependent-launch attribute, a block starts while the kernel before it still
// runs: it brings its first tiles to the L2, and neither reads nor writes before the wait.
//
// Order of a sum (the reference in the tests follows it): tile columns of a wave's run ascending,
// within one the four steps, within a step the hardware's own order; then the waves ascending, then
// the blocks ascending.
// Not handled (stream_takes): k off a multiple of 64, x off 16 bytes, sliced weights.
#pragma once
#include "csrc/gemm/epilogue.hpp"
#include "csrc/gemm/stream/config.hpp"
#include "csrc/gemm/stream/params.hpp"
#include "csrc/gemm/stream/plan.hpp"
#include "csrc/gemm/stream/tiles.hpp"

namespace nf12 {

// The tiles [begin, begin + count) of a wave, counted within its block.
struct StreamRun {
  int begin, count;
  int tiles;         // of the block
  int block_row;     // the tile row that the block begins in
  int block_column;  // and where in it
  int rows;          // of which it has tiles
  int column;        // where the wave begins
};

template <int waves>
NF12_DEVICE StreamRun stream_run(const StreamParams& p) {
  const int block = arch::block_x(), wave = arch::wave();
  const int first = p.start_of(block);
  StreamRun run;
  run.tiles = p.start_of(block + 1) - first;
  run.begin = run.tiles * wave / waves;
  run.count = run.tiles * (wave + 1) / waves - run.begin;
  run.block_row = first / p.columns;
  run.block_column = first - run.block_row * p.columns;
  run.rows = static_cast<int>(
      arch::multiply_high(run.block_column + run.tiles + p.columns - 1, p.column_magic));
  const int column = run.block_column + run.begin;
  run.column = column - static_cast<int>(arch::multiply_high(column, p.column_magic)) * p.columns;
  return run;
}

// x of one tile column: 16 columns of token lane / 4, and of token lane / 4 + 8. What lies past the
// last token stays zero.
template <StreamConfig config>
struct StreamTokens {
  arch::Words<4> piece[StreamPlan<config>::kGroups][2];
};

template <StreamConfig config>
NF12_DEVICE void load_tokens(bool wanted, const GemmParams& p, const uint16_t* x,
                             StreamTokens<config>& tokens) {
  NF12_UNROLL
  for (int group = 0; group < StreamPlan<config>::kGroups; ++group) {
    const bool exists = arch::lane() / 4 + 8 * group < p.m;
    NF12_UNROLL
    for (int i = 0; i < 2; ++i)
      arch::load16_if(wanted && exists, x + 8 * group * p.x_stride + 8 * i, tokens.piece[group][i]);
  }
}

template <StreamConfig config>
struct StreamSums {
  arch::HalfSums group[StreamPlan<config>::kGroups];
};

// Sums of the tile row that a wave leaves, and on with zeros.
template <StreamConfig config>
NF12_DEVICE void store_segment(const arch::Shared<uint32_t>& shared, int segment,
                               StreamSums<config>& sums) {
  using Plan = StreamPlan<config>;
  const int lane = arch::lane();
  const int word = Plan::kPlane + (arch::wave() * 2 + segment) * Plan::kSegmentFloats;
  NF12_UNROLL
  for (int group = 0; group < Plan::kGroups; ++group) {
    NF12_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = 8 * group + arch::Fragments::sum_token(lane, i);
      shared.store(word + token * kTileRows + arch::Fragments::sum_row(lane, i),
                   __builtin_bit_cast(uint32_t, sums.group[group].values[i]));
    }
    sums.group[group] = {};
  }
}

template <StreamConfig config>
NF12_DEVICE void multiply_run(const GemmParams& p, int columns,
                              const arch::Shared<uint32_t>& shared, const StreamRun& run,
                              const uint8_t* tile, TileIndex& index, StreamTokens<config>& next) {
  using Plan = StreamPlan<config>;
  const DecodeConstants mask;
  const int lane = arch::lane();
  const int ring = Plan::kRings + arch::wave() * Plan::kRingWords;
  const int rest = Plan::kRest + arch::wave() * kRestWords;
  const uint16_t* x_row = p.x + (lane / 4) * p.x_stride + 16 * (lane % 4);
  StreamSums<config> sums = {};
  int column = run.column, segment = column == 0;
  NF12_NO_UNROLL
  for (int t = 0; t < run.count;) {
    const int left = t + columns - column;
    const int stop = left < run.count ? left : run.count;
    const uint16_t* x = x_row + column * kTileColumns;
    NF12_NO_UNROLL
    for (; t < stop; ++t) {
      x += kTileColumns;
      const StreamTokens<config> tokens = next;
      arch::await_copies();
      arch::sync_wave();  // the lanes see each other's copies, and have read the other stage
      const DecodedPlace place = {ring + t % 2 * Plan::kStageWords, rest};
      const LaneTile encoded = read_tile(shared, place.tile);
      const bool more = t + 1 < run.count;
      tile += kTileBytes;
      copy_tile(more, shared, ring + (t + 1) % 2 * Plan::kStageWords, tile);
      load_tokens(more, p, t + 1 < stop ? x : x_row, next);
      uint32_t w[kLanePairs];
      decode_tile(encoded, mask, w);
      patch_next(p.weight, shared, place, t, run.count, index, w);
      NF12_UNROLL
      for (int step = 0; step < arch::kFragmentSteps; ++step) {
        NF12_UNROLL
        for (int group = 0; group < Plan::kGroups; ++group)
          arch::multiply_half_fragment(w, step, tokens.piece[group][step / 2], step % 2,
                                       sums.group[group]);
      }
    }
    store_segment(shared, segment, sums);
    column = 0;
    segment = 1;
  }
  if (run.count == 0) store_segment(shared, 0, sums);
}

// What the blocks before have of the tile row that this one begins in the middle of.
// `place`: of an output in a block's sums.
template <StreamConfig config>
NF12_DEVICE float take_sums(const StreamParams& p, const StreamRun& run, int place) {
  const int block = arch::block_x(), first = run.block_row * p.columns;
  int other = block - 1;
  NF12_NO_UNROLL
  while (p.start_of(other) > first) --other;
  float sum = kNoBias;
  NF12_NO_UNROLL
  for (; other < block; ++other)
    sum += arch::take_sum(p.sums + other * StreamPlan<config>::kSegmentFloats + place, p.flag);
  return sum;
}

// Which segments hold sums of a tile row of the block: the one at `first`, then as many as `more`,
// segment 0 of each next wave. Divisions, done while the first tiles are on their way.
template <StreamConfig config>
NF12_DEVICE void note_rows(const StreamParams& p, const arch::Shared<uint32_t>& shared,
                           const StreamRun& run) {
  using Plan = StreamPlan<config>;
  const int i = arch::wave() * arch::kWave + arch::lane();
  if (i >= run.rows) return;
  const auto wave_of = [&](int tile) -> int {
    return (static_cast<uint32_t>(tile + 1) * Plan::kWaves - 1) / static_cast<uint32_t>(run.tiles);
  };
  const int begin = i * p.columns - run.block_column, end = begin + p.columns;
  const bool starts = begin >= 0;
  const int first = wave_of(starts ? begin : 0);
  const int last = wave_of((end < run.tiles ? end : run.tiles) - 1);
  shared.store(Plan::kRows + 2 * i, 2 * first + starts);
  shared.store(Plan::kRows + 2 * i + 1, last - first);
}

template <StreamConfig config>
NF12_DEVICE float sum_of_waves(const arch::Shared<uint32_t>& shared, int i, int place) {
  using Plan = StreamPlan<config>;
  constexpr int kBatch = 8;  // read at once
  const arch::Words<2> noted = arch::load_shared<2>(shared, Plan::kRows + 2 * i);
  const int first = noted.w[0], more = noted.w[1];
  float sum =
      __builtin_bit_cast(float, shared.load(Plan::kPlane + first * Plan::kSegmentFloats + place));
  int word = Plan::kPlane + (first / 2 + 1) * (2 * Plan::kSegmentFloats) + place;
  NF12_NO_UNROLL
  for (int j = 0; j < more; j += kBatch, word += kBatch * 2 * Plan::kSegmentFloats) {
    float values[kBatch];
    NF12_UNROLL
    for (int b = 0; b < kBatch; ++b)
      values[b] = j + b < more
                      ? __builtin_bit_cast(float, shared.load(word + b * 2 * Plan::kSegmentFloats))
                      : kNoBias;
    NF12_UNROLL
    for (int b = 0; b < kBatch; ++b) sum += values[b];
  }
  return sum;
}

// One output a thread, once all waves are done. From the last row to the first: what the next block
// waits for is posted before this one waits, or each would wait for all before it.
template <StreamConfig config>
NF12_DEVICE void store_rows(const StreamParams& p, const arch::Shared<uint32_t>& shared,
                            const StreamRun& run) {
  using Plan = StreamPlan<config>;
  constexpr int kPairs = 2 * Plan::kWaves;  // of a tile row and a token, half a wave each
  const GemmParams& gemm = p.gemm;
  const int lane = arch::lane();
  const int pair = arch::wave() * 2 + lane / kTileRows;
  const int row = lane % kTileRows, token = pair % Plan::kTokens;
  const int place = token * kTileRows + row;
  const auto output_of = [&](int i) { return (run.block_row + i) * kTileRows + row; };
  const auto bias_of = [&](int i) {
    return gemm.bias != nullptr && i >= 0 && output_of(i) < static_cast<int>(gemm.weight.n)
               ? float_from_bf16(arch::load2(gemm.bias, 2 * output_of(i)))
               : kNoBias;
  };
  int i = run.rows - 1 - pair / Plan::kTokens;
  float bias = bias_of(i);
  arch::sync_block();
  if (token >= gemm.m) return;
  NF12_NO_UNROLL
  while (i >= 0) {
    const int begin = i * p.columns - run.block_column, out = output_of(i);
    if (out < static_cast<int>(gemm.weight.n)) {
      float sum = sum_of_waves<config>(shared, i, place);
      if (begin + p.columns > run.tiles) {
        arch::post_sum(p.sums + arch::block_x() * Plan::kSegmentFloats + place, sum, p.flag);
      } else {
        if (begin < 0) sum = take_sums<config>(p, run, place) + sum;
        arch::store2(gemm.y + token * gemm.y_stride + out, finish(sum, gemm.scale, bias));
      }
    }
    i -= kPairs / Plan::kTokens;
    bias = bias_of(i);
  }
}

template <StreamConfig config>
NF12_DEVICE void stream_gemm(const StreamParams& p) {
  using Plan = StreamPlan<config>;
  static_assert(arch::Fragments::kRuns == 2, "written for the fragments of m16n8k16");
  NF12_SHARED_AT_LAUNCH(uint32_t, shared, Plan::kSharedBytes / 4);
  const StreamRun run = stream_run<Plan::kWaves>(p);
  const PackedView& weight = p.gemm.weight;
  const int64_t first = p.start_of(arch::block_x()) + run.begin;
  const uint8_t* tile = weight.payload + first * kTileBytes;
  TileIndex index = {.words = weight.index + first, .step = 1, .own = 0, .listed = 0, .entry = 0};
  const int lane = arch::lane();
  arch::start_successor();
  if (run.count > 0) {
    if (lane < kTileBytes / 128) arch::prefetch(tile + 128 * lane);
    if (lane == 0) arch::prefetch(index.words);
  }
  const uint16_t* x = p.gemm.x + (lane / 4) * p.gemm.x_stride + 16 * (lane % 4);
  arch::await_predecessor();
  // In this order: what comes after a tile's copies waits for them.
  load_index(index, 0, run.count);
  StreamTokens<config> tokens = {};
  load_tokens(run.count > 0, p.gemm, x + run.column * kTileColumns, tokens);
  copy_tile(run.count > 0, shared, Plan::kRings + arch::wave() * Plan::kRingWords, tile);
  note_rows<config>(p, shared, run);
  open_index(weight, index, 0);
  multiply_run<config>(p.gemm, p.columns, shared, run, tile, index, tokens);
  store_rows<config>(p, shared, run);
}

}  // namespace nf12
