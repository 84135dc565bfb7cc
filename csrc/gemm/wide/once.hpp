// The wide kernel for so many tokens that decoding a weight again for each tile costs more than
// writing it down: each is decoded once, to memory, by three waves of every block; the rest of the
// block is a GEMM on what they wrote.
//
//   waves 0..7   two groups that multiply, 64 rows each
//   wave 8       x, half of it a block and from there to both of a cluster; weights, 16 KiB a
//                k-block, as soon as the count of their group says that they are there
//   waves 9..11  decode: a job is a tile row of a group of four tile columns. Jobs are taken from a
//                counter, in the order in which the grid wants them
//
//   decoded weights   [row block of 128][tile column][128 rows x 128 bytes], as block_byte says
//   jobs, in order    row blocks that are worked on together: all their rows of group 0, then of
//                     group 1, ...
//
// Decoding waits for the copies of its own block alone, so nobody waits for a block that has not
// started. A cluster of two blocks takes two neighbouring row blocks of the same tokens: without
// sharing x 2 % slower (H200, 2026-11-29, m 4096, 8192 x 8192).
//
// Order of a sum: k-blocks ascending. Not handled: what wide_takes refuses.
#pragma once
#include "csrc/gemm/matrix/weights.hpp"
#include "csrc/gemm/wide/once_plan.hpp"
#include "csrc/gemm/wide/outputs.hpp"

namespace nf12 {

// ---- decoding ----

struct OnceJob {
  int block, tile_row, group;  // tile_row: of the block
  int position;                // the groups before its own, of all row blocks
};

// Where jobs lie, for a wave whose tickets ascend: no division.
struct OnceJobs {
  int first = 0, block = 0, group = 0;  // the ticket and the row block that a group begins with
  int position = 0;

  NF12_DEVICE OnceJob at(const OnceParams& p, int ticket) {
    const int of_group = p.together * kWideTileRows;
    NF12_NO_UNROLL
    for (; ticket - first >= of_group; first += of_group, ++position)
      if (++group == p.groups) group = 0, block += p.together;
    const int job = ticket - first;
    return {block + job / kWideTileRows, job % kWideTileRows, group, position};
  }
};

NF12_DEVICE void write_escapes(const PackedView& weight, const IndexWord& word, uint8_t* to) {
  const uint32_t* quads = weight.escapes + int64_t{word.quad} * kEntriesPerQuad;
  const int lane = arch::lane();
  if (word.is_raw()) {
    NF12_UNROLL
    for (int i = 0; i < 4; ++i)
      arch::store_stream16(to + piece_byte(lane, i), arch::load16(quads, raw_byte(lane, i)));
    return;
  }
  NF12_NO_UNROLL
  for (int at = lane; at < static_cast<int>(word.count); at += arch::kWave) {
    const Escape escape = Escape::from_bits(arch::load_words<1>(quads + at).w[0]);
    arch::store_global2(
        to + block_byte(escape.position / kTileColumns, escape.position % kTileColumns),
        escape.value);
  }
}

// A job whose tiles are on their way.
struct OnceWork {
  LaneTile tiles[kOnceGroup];
  int count;          // of them; none in a row block past the last one
  uint32_t words;     // index words, one a lane
  uint8_t* to;        // the place of the first tile
  uint32_t* counter;  // of its group
};

// Without a branch between the tiles of a whole group: three waves have to keep up.
template <typename Body>
NF12_DEVICE void for_each_tile(int count, const Body& body) {
  if (count == kOnceGroup) {
    NF12_UNROLL
    for (int i = 0; i < kOnceGroup; ++i) body(i);
  } else {
    NF12_UNROLL
    for (int i = 0; i < kOnceGroup; ++i)
      if (i < count) body(i);
  }
}

NF12_DEVICE void begin_work(const OnceParams& p, const OnceJob& job, OnceWork& work) {
  const PackedView& weight = p.wide.gemm.weight;
  const int lane = arch::lane(), last_row = tile_rows_of(weight) - 1;
  const int first = job.group * kOnceGroup, left = p.wide.columns - first;
  work.count = job.block >= p.row_blocks ? 0 : left < kOnceGroup ? left : kOnceGroup;
  if (work.count == 0) return;
  const int wanted = job.block * kWideTileRows + job.tile_row;
  const int64_t row = wanted < last_row ? wanted : last_row;  // past it: rows that nobody stores
  work.to = p.decoded + (int64_t{job.block} * p.wide.columns + first) * kOnceBlockBytes +
            job.tile_row * (kTileWeights * 2);
  work.counter = p.counts + 1 + job.block * p.groups + job.group;
  const uint8_t* from = weight.tile(row, first);
  const uint32_t* index = weight.index + row * weight.index_stride + first;
  work.words = lane < work.count ? arch::load_words<1>(index + lane).w[0] : 0;
  for_each_tile(work.count, [&](int i) {
    work.tiles[i] = load_tile(from + i * kTileBytes, 16 * lane, 8 * lane);
  });
}

NF12_DEVICE void finish_work(const PackedView& weight, OnceWork& work) {
  const DecodeConstants mask;
  const int lane = arch::lane();
  uint8_t* const pieces[2] = {work.to + piece_byte(lane, 0), work.to + piece_byte(lane, 1)};
  for_each_tile(work.count, [&](int i) {
    const LaneTile& tile = work.tiles[i];
    NF12_UNROLL
    for (int piece = 0; piece < 4; ++piece) {
      arch::Words<4> out;
      decode_eight(tile.signs + 2 * piece, tile.codes[piece], mask, out.w);
      arch::store_stream16(pieces[piece % 2] + i * kOnceBlockBytes + piece / 2 * 1024, out);
    }
  });
  if (arch::ballot(work.words != 0) == 0) return;
  if (!IndexWord::from_bits(work.words).is_inside(weight.quads)) work.words = 0;
  arch::sync_wave();  // all lanes' weights are there to be written over
  NF12_NO_UNROLL
  for (int i = 0; i < work.count; ++i) {
    const uint32_t word = arch::broadcast(work.words, i);
    if (word != 0) write_escapes(weight, IndexWord::from_bits(word), work.to + i * kOnceBlockBytes);
  }
}

// A whole wave. What it stored has time to arrive while the next job's tiles are on their way: the
// fence waits for both. Tickets are drawn two jobs ahead.
//
// `position`: where the block's own copies are, in groups. Jobs far ahead of it wait: what they
// write would leave the L2 before it is read. The waiting ends, as copies never ask for a job
// behind their own place in the order of jobs: the first job that is not done waits for copies that
// have all they need to get there.
template <int tokens>
NF12_DEVICE void decode_weights(const OnceParams& p, uint32_t shared) {
  const uint32_t position = shared + OncePlan<tokens>::kPosition;
  const PackedView& weight = p.wide.gemm.weight;
  const int lane = arch::lane();
  const int chunks = (p.row_blocks + p.together - 1) / p.together;
  const int jobs = chunks * p.together * kWideTileRows * p.groups;
  uint32_t ticket = 0;
  const auto draw = [&] {
    if (lane == 0) ticket = arch::take_ticket(p.counts);
  };
  const auto drawn = [&] { return static_cast<int>(arch::broadcast(ticket, 0)); };
  OnceJobs all;
  OnceWork work;
  draw();
  int now = drawn();
  draw();
  OnceJob job = all.at(p, now);
  work.count = 0;
  bool begun = false;
  NF12_NO_UNROLL
  while (now < jobs) {
    if (!begun) {
      arch::await_word(position, job.position - kOnceLead);
      begin_work(p, job, work);
    }
    if (work.count > 0) finish_work(weight, work);
    uint32_t* counter = work.count > 0 ? work.counter : nullptr;
    now = drawn();
    draw();
    job = all.at(p, now);
    begun = now < jobs && arch::posted_word(position) >= job.position - kOnceLead;
    begun = arch::ballot(begun) != 0;  // whoever looked later may see more
    if (begun) begin_work(p, job, work);
    if (counter == nullptr) continue;
    arch::show_to_copies_everywhere();
    arch::sync_wave();
    if (lane == 0) arch::count_up(counter);
  }
}

// ---- multiplying ----

// Tiles of a cluster: every stride-th from its own number on.
struct OnceTiles {
  int rank, first, stride;
};

NF12_DEVICE int row_block_of(const OnceParams& p, int tile, int rank) {
  return tile / p.wide.token_tiles * kOnceBlocks + rank;
}

// One lane.
template <int tokens>
NF12_DEVICE void copy_operands(const OnceParams& p, uint32_t shared, const OnceTiles& tiles) {
  using Plan = OncePlan<tokens>;
  constexpr int kOwn = tokens / kOnceBlocks;
  WideRing<Plan::kStages> ring = {0, 1};
  int position = 0;
  NF12_NO_UNROLL
  for (int tile = tiles.first; tile < p.wide.tiles; tile += tiles.stride) {
    const int token = tile % p.wide.token_tiles * tokens + tiles.rank * kOwn;
    const int wanted = row_block_of(p, tile, tiles.rank);
    const int block = wanted < p.row_blocks ? wanted : p.row_blocks - 1;  // of an odd number
    const uint8_t* from = p.decoded + int64_t{block} * p.wide.columns * kOnceBlockBytes;
    const uint32_t* counts = p.counts + 1 + block * p.groups;
    NF12_NO_UNROLL
    for (int column = 0; column < p.wide.columns; ++column) {
      const uint32_t filled = shared + Plan::kFilled + 8 * ring.stage;
      const uint32_t stage = shared + ring.stage * Plan::kStageBytes;
      arch::wait_barrier(shared + Plan::kRead + 8 * ring.stage, ring.parity);
      arch::expect_bytes(filled, Plan::kStageBytes);
      arch::copy_box_to((1 << kOnceBlocks) - 1, stage + kOnceBlockBytes + tiles.rank * kOwn * 128,
                        &p.wide.x_map, filled, column * kWideColumns, token);
      if (column % kOnceGroup == 0) {
        arch::post_word(shared + Plan::kPosition, position++);
        arch::await_count(counts + column / kOnceGroup, kWideTileRows);
      }
      arch::copy_bytes(stage, from + int64_t{column} * kOnceBlockBytes, kOnceBlockBytes, filled);
      ring.advance();
    }
  }
  arch::post_word(shared + Plan::kPosition, INT32_MAX);
}

template <int tokens>
NF12_DEVICE void multiply_decoded(const OnceParams& p, uint32_t shared, const OnceTiles& tiles) {
  using Plan = OncePlan<tokens>;
  const int wave = arch::wave(), lane = arch::lane();
  const WidePlace place = WidePlace::of(wave);
  const uint32_t a = arch::operand_at(shared + place.group * Plan::kGroupBytes);
  const uint32_t b = arch::operand_at(shared + kOnceBlockBytes);
  const uint32_t staging = shared + Plan::kStaging + place.group * 2 * Plan::kGroupBytes;
  float sums[tokens / 2] = {};
  WideRing<Plan::kStages> ring = {0, 0};
  NF12_NO_UNROLL
  for (int tile = tiles.first; tile < p.wide.tiles; tile += tiles.stride) {
    int before = 0;
    NF12_NO_UNROLL
    for (int column = 0; column < p.wide.columns; ++column) {
      arch::wait_barrier(shared + Plan::kFilled + 8 * ring.stage, ring.parity);
      const uint32_t at = ring.stage * (Plan::kStageBytes / 16);
      arch::open_products();
      NF12_UNROLL
      for (int i = 0; i < kWideColumns / 16; ++i)
        arch::multiply_shared(sums, a + at + i * arch::kOperandStep,
                              b + at + i * arch::kOperandStep, i > 0 || column > 0);
      arch::close_products();
      arch::await_products<1>();
      if (column > 0 && lane < kOnceBlocks)
        arch::arrive_barrier_of(lane, shared + Plan::kRead + 8 * before);
      before = ring.stage;
      ring.advance();
    }
    const int row = row_block_of(p, tile, tiles.rank) * kWideRows + place.group * 64;
    const WideBias bias = load_bias(p.wide.gemm, row + kTileRows * place.wave);
    arch::await_products<0>();
    arch::settle_sums(sums);
    if (lane < kOnceBlocks) arch::arrive_barrier_of(lane, shared + Plan::kRead + 8 * before);
    const WideOutput out = {
        row, tile % p.wide.token_tiles * tokens, {staging, staging + Plan::kGroupBytes}};
    store_outputs<tokens>(p.wide, place, out, bias, sums);
  }
  if (place.elected) arch::await_boxes_written();
}

template <int tokens>
NF12_DEVICE void once_gemm(const OnceParams& p) {
  using Plan = OncePlan<tokens>;
  NF12_SHARED_AT_LAUNCH(uint32_t, memory, Plan::kSharedBytes / 4);
  const uint32_t shared = (arch::shared_address(memory, 0) + Plan::kAlignment - 1) &
                          ~static_cast<uint32_t>(Plan::kAlignment - 1);
  const int wave = arch::wave(), lane = arch::lane();
  const OnceTiles tiles = {arch::cluster_rank(), arch::block_x() / kOnceBlocks,
                           p.wide.blocks / kOnceBlocks};
  if (wave == kTokenWave && lane == 0) {
    for (int i = 0; i < Plan::kStages; ++i) {
      arch::open_barrier(shared + Plan::kFilled + 8 * i, 1);
      arch::open_barrier(shared + Plan::kRead + 8 * i, kTokenWave * kOnceBlocks);
    }
    arch::post_word(shared + Plan::kPosition, 0);
    arch::show_barriers();
    arch::prefetch_map(&p.wide.x_map);
    arch::prefetch_map(&p.wide.y_map);
  }
  arch::sync_cluster();
  if (wave < kTokenWave) {
    arch::take_registers<208>();
    multiply_decoded<tokens>(p, shared, tiles);
  } else {
    arch::give_registers<88>();
    if (wave > kTokenWave)
      decode_weights<tokens>(p, shared);
    else if (lane == 0)
      copy_operands<tokens>(p, shared, tiles);
  }
  arch::sync_wave();
  arch::sync_cluster();  // what the other block sends and counts here finds it still there
}

}  // namespace nf12
