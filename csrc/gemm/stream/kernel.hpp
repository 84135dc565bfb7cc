// Streaming GEMM for up to 16 tokens on matrix cores: y[t, j] = sum_k x[t, k] W[j, k].
//
// Bound by the bytes of the weights. One block a multiprocessor, for the whole launch:
//   - A block owns whole tile rows. Its tiles, in memory order, are shared out to the waves in
//   equal
//     runs: each wave reads one stretch of memory from end to end, whatever rows it crosses. There
//     is no second round of blocks and no wave that waits for another until all are done.
//   - A tile travels to shared memory by asynchronous copies while the one before it is decoded and
//     multiplied: 1.5 KB in flight a wave, 48 KB a multiprocessor. More is slower: everything
//     else that is read (x, the index, lists) then waits behind it (H200, 2026-11-29, m = 1,
//     4096 x 4096, us: one tile ahead 10.0, two 11.5, three 13.2).
//   - Decoded, a lane's weights are its A fragments. x is the B operand: read from the cache when
//   the
//     tile before it is multiplied, past no barrier.
//   - A wave's sums of a tile row that starts or ends in another wave meet in a plane of shared
//     memory, which is added up in the order of the waves.
//
//   tiles of a block   row 0 |0 1 2 3 . . . |   row 1 |. . . . |
//   waves                    |w0 |w1  |w2   |w3  .. |        every wave as many, give or take one
//   plane of a wave          [1]: the row that starts in it    [0]: the row that began before it
//
// Launched with the dependent-launch attribute, a block starts while the kernel before it still
// runs: it brings its first tiles to the L2, and neither reads nor writes before the wait.
//
// Order of a sum (the reference in the tests follows it): tile columns of a wave's run ascending,
// within one the four steps, within a step the hardware's own order; then the waves ascending.
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
  int tiles;      // of the block
  int block_row;  // the block's first tile row
  int row, column;
};

template <int waves>
NF12_DEVICE StreamRun stream_run(const StreamParams& p) {
  const int block = arch::block_x(), wave = arch::wave();
  StreamRun run;
  run.block_row = block * p.rows + (block < p.longer ? block : p.longer);
  run.tiles = (p.rows + (block < p.longer ? 1 : 0)) * p.columns;
  run.begin = run.tiles * wave / waves;
  run.count = run.tiles * (wave + 1) / waves - run.begin;
  run.row = static_cast<int>(arch::multiply_high(run.begin, p.column_magic));
  run.column = run.begin - run.row * p.columns;
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

// One output a thread: the sums of the waves that met its tile row, the first of them in segment 1.
template <StreamConfig config>
NF12_DEVICE void store_rows(const GemmParams& p, int columns, const arch::Shared<uint32_t>& shared,
                            const StreamRun& run) {
  using Plan = StreamPlan<config>;
  constexpr int kPairs = 2 * Plan::kWaves;  // of a tile row and a token, half a wave each
  const int lane = arch::lane();
  const int pair = arch::wave() * 2 + lane / kTileRows;
  const int row = lane % kTileRows, token = pair % Plan::kTokens;
  if (token >= p.m) return;
  const auto tiles = static_cast<uint32_t>(run.tiles);
  NF12_NO_UNROLL
  for (int tile = pair / Plan::kTokens * columns; tile < run.tiles;
       tile += kPairs / Plan::kTokens * columns) {
    const int out = (run.block_row + tile / columns) * kTileRows + row;
    if (out >= static_cast<int>(p.weight.n)) return;
    const int first = (static_cast<uint32_t>(tile + 1) * Plan::kWaves - 1) / tiles;
    const int last = (static_cast<uint32_t>(tile + columns) * Plan::kWaves - 1) / tiles;
    const float bias = p.bias ? float_from_bf16(arch::load2(p.bias, 2 * out)) : kNoBias;
    int word = Plan::kPlane + (2 * first + 1) * Plan::kSegmentFloats + token * kTileRows + row;
    float sum = __builtin_bit_cast(float, shared.load(word));
    word -= Plan::kSegmentFloats;
    NF12_UNROLL_BY(8)
    for (int wave = first; wave < last; ++wave) {
      word += 2 * Plan::kSegmentFloats;
      sum += __builtin_bit_cast(float, shared.load(word));
    }
    arch::store2(p.y + token * p.y_stride + out, finish(sum, p.scale, bias));
  }
}

template <StreamConfig config>
NF12_DEVICE void stream_gemm(const StreamParams& p) {
  using Plan = StreamPlan<config>;
  static_assert(arch::Fragments::kRuns == 2, "written for the fragments of m16n8k16");
  NF12_SHARED_AT_LAUNCH(uint32_t, shared, Plan::kSharedBytes / 4);
  const StreamRun run = stream_run<Plan::kWaves>(p);
  const PackedView& weight = p.gemm.weight;
  const int64_t first = int64_t{run.block_row} * p.columns + run.begin;
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
  open_index(weight, index, 0);
  multiply_run<config>(p.gemm, p.columns, shared, run, tile, index, tokens);
  arch::sync_block();
  store_rows<config>(p.gemm, p.columns, shared, run);
}

}  // namespace nf12
