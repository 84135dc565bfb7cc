// How the wide kernels' work is shared out: every k-block of every tile once, nobody waiting for a
// block of a higher number, and shapes within what the kernels count and the tensor unit takes.
#include "csrc/gemm/wide/launch.hpp"

#include <climits>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/gemm/wide/walk.hpp"
#include "tests/cpp/codec.hpp"
#include "tests/cpp/expect.hpp"

namespace nf12::test {
namespace {

// Tiles one below the other.
WideParams params_of(int tiles, int columns, int shared_tiles, int blocks, int sharers = 0) {
  WideParams p = {};
  p.gemm.weight = weight_of(int64_t{tiles} * kWideRows, int64_t{columns} * kTileColumns);
  p.gemm.m = 1;
  const WideShape shape = {
      .tokens = 128, .blocks = blocks, .shared_tiles = shared_tiles, .sharers = sharers};
  wide_grid(shape, p);
  return p;
}

void expect_walk_sound(const WideParams& p) {
  const std::string what = join(p.tiles, " tiles of ", p.columns, ", shared ", p.shared_tiles,
                                ", blocks ", p.blocks, ", of a tile ", p.sharers);
  std::vector<int> times(p.tiles * p.columns), owners(p.tiles);
  for (int block = 0; block < p.blocks; ++block) {
    WideWalk walk = WideWalk::of(p, block);
    const int total = walk.total();
    EXPECT(total > 0, what, ": nothing for block ", block);
    int seen = 0;
    for (int piece = 0; walk.next(); ++piece) {
      EXPECT(walk.first < walk.last, what, ": an empty piece");
      for (int k = walk.first; k < walk.last; ++k) ++times[walk.tile * p.columns + k];
      seen += walk.last - walk.first;
      const bool owns = walk.last == p.columns;
      EXPECT(owns || piece == 0, what, ": block ", block, " leaves sums after piece ", piece);
      EXPECT(owns || walk.tile < p.shared_tiles, what, ": a part of a whole tile");
      if (!owns) continue;
      ++owners[walk.tile];
      if (walk.first == 0) continue;
      // The blocks whose sums it gathers are those that have the k-blocks before.
      const int low = walk.tile * p.columns, from = walk.first_helper(p, block);
      EXPECT(from >= 0 && from < block, what, ": from block ", from);
      EXPECT(WideWalk::start_of(p, from) <= low && WideWalk::start_of(p, from + 1) > low, what,
             ": block ", from, " does not begin tile ", walk.tile);
      for (int other = from; other < block; ++other) {
        WideWalk its = WideWalk::of(p, other);
        EXPECT(its.next() && its.tile == walk.tile && its.last < p.columns, what, ": block ", other,
               " leaves nothing for tile ", walk.tile);
      }
    }
    EXPECT(seen == total, what, ": ", seen, " k-blocks instead of ", total);
  }
  for (const int count : times)
    if (count != 1) EXPECT(false, what, ": a k-block ", count, " times");
  for (const int count : owners)
    if (count != 1) EXPECT(false, what, ": a tile with ", count, " owners");
}

TEST(every_k_block_once) {
  for (const int tiles : {1, 2, 3, 7, 20, 33})
    for (const int columns : {1, 2, 5, 16})
      for (const int blocks : {1, 2, 3, 7, 10}) {
        if (blocks <= tiles) expect_walk_sound(params_of(tiles, columns, 0, blocks));
        if (blocks <= tiles * columns) expect_walk_sound(params_of(tiles, columns, tiles, blocks));
        if (tiles >= 2 * blocks)
          expect_walk_sound(params_of(tiles, columns, tiles % blocks + blocks, blocks));
        if (blocks > 1 && blocks <= columns)
          expect_walk_sound(params_of(tiles, columns, tiles, blocks * tiles, blocks));
      }
}

TEST(an_owner_multiplies_longer_than_its_helpers) {
  for (const auto& [columns, sharers, own] : {std::tuple(128, 2, 67), {172, 4, 48}, {5, 4, 2}}) {
    const WideParams p = params_of(3, columns, 3, 3 * sharers, sharers);
    for (int block = 0; block < p.blocks; ++block) {
      WideWalk walk = WideWalk::of(p, block);
      const bool owns = block % sharers == sharers - 1;
      EXPECT(owns ? walk.total() == own : walk.total() <= std::max(own - kWideLag + 1, 1), columns,
             " among ", sharers, ": block ", block, " has ", walk.total());
    }
  }
}

// Those that a card's launch would take, for weights and tokens of every size.
TEST(every_choice_of_a_shape_is_within_the_limits) {
  for (const WideCard& card :
       {WideCard{132, 66, 7, true}, WideCard{114, 0, 7, true}, WideCard{20, 8, 4, false}})
    for (const int64_t n : {1, 100, 128, 4864, 4096, 5120, 28672, 151936})
      for (const int64_t k : {64, 128, 896, 4096, 25600, 1 << 20})
        for (const int64_t m : {1, 65, 128, 129, 192, 256, 257, 1000, 1024, 4096, 1 << 20}) {
          const WideShape shape = wide_shape(card, n, k, m);
          const std::string what =
              join("m ", m, ", n ", n, ", k ", k, ": tokens ", shape.tokens, ", once ", shape.once,
                   ", blocks ", shape.blocks, ", shared ", shape.shared_tiles, ", of a tile ",
                   shape.sharers, ", row blocks ", shape.row_blocks);
          const int64_t work = wide_row_blocks(n) * tile_columns(k) * ((m + 255) / 256);
          if (shape.tokens == 0) {
            EXPECT(work > INT32_MAX / 8, what);
            continue;
          }
          EXPECT(wide_shared_bytes(shape) <= 227 * 1024, what);
          OnceParams p = {};
          p.wide.gemm.weight = weight_of(n, k);
          p.wide.gemm.m = static_cast<int32_t>(m);
          if (shape.once) {
            p.wide.gemm.weight.n = std::min(n, shape.row_blocks * kWideRows);
            const Grid grid = once_grid(shape, p);
            EXPECT(card.clusters > 0 && grid.x % kOnceBlocks == 0 &&
                       grid.x <= kOnceBlocks * card.clusters,
                   what);
            EXPECT(shape.row_blocks % kOnceBlocks == 0 && p.together >= 1 &&
                       p.row_blocks <= shape.row_blocks,
                   what);
            EXPECT(int64_t{p.row_blocks + p.together} * kWideTileRows * p.groups < INT32_MAX, what);
            EXPECT(wide_workspace_bytes(shape, k) < size_t{300} << 20 ||
                       shape.row_blocks == kOnceBlocks,
                   what, ", workspace ", wide_workspace_bytes(shape, k));
          } else {
            const Grid grid = wide_grid(shape, p.wide);
            EXPECT(grid.x >= 1 && grid.x <= card.processors, what);
            const int64_t shared = int64_t{shape.shared_tiles} * p.wide.columns;
            EXPECT(shared * (grid.x + 1) < INT32_MAX, what);
            EXPECT(shape.shared_tiles == 0 ? grid.x <= p.wide.tiles : grid.x <= shared, what);
            EXPECT(shape.shared_tiles <= p.wide.tiles, what);
            EXPECT(shape.sharers == 0 || (shape.shared_tiles == p.wide.tiles &&
                                          grid.x == shape.sharers * int64_t{p.wide.tiles}),
                   what);
          }
        }
}

TEST(boxes_are_what_the_tensor_unit_takes) {
  GemmParams p = {};
  p.weight = weight_of(37, 192);
  p.m = 1;
  p.x_stride = p.y_stride = 3;  // of one row
  EXPECT(y_layout(p).row_stride_bytes % 16 == 0 && x_layout(p, 128).row_stride_bytes % 16 == 0,
         "a single row's stride");
  p.m = 2;
  p.x_stride = 200;
  const TensorLayout x = x_layout(p, 256);
  EXPECT(x.row_stride_bytes == 400 && x.columns == 192 && x.rows == 2, x.row_stride_bytes);
  const TensorLayout w = encoded_layout(p.weight);
  EXPECT(w.columns * w.element_bytes == 3 * kTileBytes && w.rows == 3, w.columns);
  EXPECT(w.box_columns <= 256 && x.box_rows <= 256, "a box has at most 256 a side");
  PackedView apart = p.weight;
  apart.payload_stride_bytes = 16;
  EXPECT(!wide_takes(apart), "tile rows that overlap");
  apart.payload_stride_bytes = int64_t{1} << 40;
  EXPECT(!wide_takes(apart), "tile rows further apart than a map can say");
  apart.n = 16;
  EXPECT(wide_takes(apart), "of one tile row the stride does not matter");
}

// What a wave that decodes relies on when it waits for the copies of its own block: these never ask
// for a job that comes after their own place in the order of jobs.
TEST(copies_ask_for_jobs_no_later_than_their_place) {
  for (const int row_blocks : {1, 2, 7, 40, 152})
    for (const int token_tiles : {1, 2, 3, 8, 65})
      for (const int clusters : {1, 2, 15, 66}) {
        OnceParams p = {};
        p.wide.gemm.weight = weight_of(row_blocks * kWideRows, 64);
        p.wide.gemm.m = token_tiles * kOnceTokens;
        once_grid({.tokens = kOnceTokens, .once = true, .blocks = kOnceBlocks * clusters}, p);
        const int at_once = p.wide.blocks / kOnceBlocks;
        for (int tile = 0; tile < p.wide.tiles; ++tile)
          for (int rank = 0; rank < kOnceBlocks; ++rank) {
            const int round = tile / at_once;
            const int block = tile / token_tiles * kOnceBlocks + rank;
            if (block < row_blocks && block / p.together > round)
              EXPECT(false, "row blocks ", row_blocks, ", tiles of tokens ", token_tiles,
                     ", clusters ", clusters, ": tile ", tile, " in round ", round);
          }
      }
}

// Eight lanes that store at once, or the matrix unit's eight rows: 16 bytes each, in all banks.
TEST(pieces_lie_apart_and_each_weight_once) {
  std::vector<bool> taken(kTileWeights);
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const uint32_t at = piece_byte(lane, i);
      EXPECT(at == piece_from_first(piece_byte(lane, 0), i), "lane ", lane, ", piece ", i);
      for (int column = 0; column < 8; ++column) {
        const uint32_t row = lane / 4 + i / 2 * 8;
        const uint32_t byte = block_byte(row, lane % 4 * 16 + i % 2 * 8 + column);
        EXPECT(byte == at + 2 * column && byte / 128 == row && !taken[byte / 2], "byte ", byte);
        taken[byte / 2] = true;
      }
    }
  for (int first = 0; first < 32; first += 8)
    for (int i = 0; i < 4; ++i) {
      int banks = 0;
      for (int lane = first; lane < first + 8; ++lane) banks |= 1 << piece_byte(lane, i) / 16 % 8;
      EXPECT(banks == 0xFF, "lanes from ", first, ", piece ", i, ": banks ", banks);
    }
}

}  // namespace
}  // namespace nf12::test
