// The shipped warpgroup kernels, in the host model or on a card (machine.hpp): against integers,
// where any order of a sum is exact, and for other values against the bound of any order. In the
// model a launch takes seconds under the sanitizers: it gets a part of the cases, and small ones.
#define NF12_HOST_FRAGMENTS MmaFragments
#include <algorithm>
#include <cstddef>

#include "csrc/format/escapes.hpp"
#include "csrc/gemm/stream/launch.hpp"
#include "csrc/gemm/warpgroup/kernel.hpp"
#include "csrc/gemm/warpgroup/launch.hpp"
#include "tests/host_model/gemm_problem.hpp"
#include "tests/host_model/maps.hpp"

namespace nf12::test {
namespace {

constexpr int kCardSharedBytes = 227 * 1024;  // of a block

// Clusters that an H200 runs at once.
constexpr ClusterCounts kCard = {0, 132, 66, 39, 30, 22, 17, 15, 15};

constexpr int groups_of(int tokens) { return warpgroup_config(tokens).groups; }
constexpr int turns_of(int tokens) {
  return std::min(groups_of(tokens), most_turns(warpgroup_config(tokens)));
}

struct Problem : GemmProblem {
  int tokens;  // of the compiled form
  ClusterShape shape;
  int64_t y_gap, y_offset = 0;

  Problem(int64_t m, int64_t n, int64_t k, int tokens, ClusterShape shape, int64_t x_gap = 8,
          int64_t x_offset = 0)
      : GemmProblem(m, n, k, x_gap, x_offset),
        tokens(tokens),
        shape(shape),
        y_gap(8 + (8 - n % 8) % 8) {}
};

// As many turns and rows of those asked for as a block has groups, and memory, for.
ClusterShape within_limits(int tokens, ClusterShape shape) {
  shape.turns = std::min(shape.turns, turns_of(tokens));
  shape.rows = std::min(shape.rows, groups_of(tokens) / shape.turns * kGroupTileRows);
  while (warpgroup_shared_bytes(tokens, shape) > kCardSharedBytes) --shape.rows;
  return shape;
}

std::string name_of(const Problem& problem) {
  return join("m ", problem.x.m, " of ", problem.tokens, ", n ", problem.w.n, ", k ", problem.w.k,
              ", x stride ", problem.x.stride, ", y gap ", problem.y_gap, ", y offset ",
              problem.y_offset, ", rows ", problem.shape.rows, ", turns ", problem.shape.turns,
              ", blocks ", problem.shape.blocks);
}

void expect_within_limits(Problem& problem, const PackedView& view) {
  const WarpgroupConfig config = warpgroup_config(problem.tokens);
  const auto [rows, turns, blocks] = problem.shape;
  const int row_groups = (rows + kGroupTileRows - 1) / kGroupTileRows;
  EXPECT(rows >= 1 && row_groups * turns <= config.groups && turns <= most_turns(config),
         name_of(problem));
  EXPECT(blocks <= tile_columns(view.k) && blocks <= arch::kMostClusterBlocks, name_of(problem));
  EXPECT(warpgroup_takes(view, problem.x.m, problem.x.stride) &&
             rows_are_aligned(problem.x.data(), problem.x.stride, problem.x.m),
         name_of(problem));
}

std::vector<uint16_t> run_warpgroup(Problem& problem, const PackedView& view) {
  Outputs y(problem.x.m, view.n, problem.y_gap, problem.y_offset);
  expect_within_limits(problem, view);
  WarpgroupParams p = {};
  p.cluster.gemm = params_of(problem, view, y.data(), y.stride);
  const WarpgroupConfig config = warpgroup_config(problem.tokens);
  const Grid grid = warpgroup_grid(config, p, problem.shape);
  const int bytes = warpgroup_shared_bytes(problem.tokens, problem.shape);
  EXPECT(bytes <= kCardSharedBytes, bytes, " bytes: ", name_of(problem));
  const MapOfBuffer map = {offsetof(WarpgroupParams, x_map),
                           x_layout(p.cluster.gemm, warpgroup_box_tokens(config, p.tokens))};
  std::vector<arch::host::Buffer> buffers = inputs_of(problem, p.cluster.gemm);
  buffers.push_back(y.buffer());
  try {
    run_kernel({"nf12_gemm_warpgroup_t" + std::to_string(problem.tokens), static_cast<int>(grid.x),
                static_cast<int>(grid.y), grid.threads / arch::kWave, 1, buffers, bytes,
                problem.shape.blocks},
               std::as_writable_bytes(std::span(&p, 1)), std::span(&map, 1), [&] {
                 with_tokens<kWarpgroupTokens>(problem.tokens,
                                               [&]<int t>(std::integral_constant<int, t>) {
                                                 warpgroup_gemm<warpgroup_config(t)>(p);
                                               });
               });
  } catch (const arch::host::Report& report) {
    EXPECT(false, name_of(problem), ": ", report.what());
  }
  return y.rows();
}

void expect_integers_right(Problem& problem, Random& random) {
  fill_integers(problem, random);
  problem.pack();
  expect_same(run_warpgroup(problem, problem.view()), integer_product(problem), problem.w.n,
              name_of(problem));
}

// The last cluster has one row of six, fewer than blocks.
TEST(every_edge_of_m) {
  Random random(1);
  Cases cases(31);
  for (const int tokens : kWarpgroupTokens)
    for (const int m : {1,  2,  15, 16, 17, 31, 32, 33,  47,  48,  49,  63, 64,
                        65, 79, 80, 81, 95, 96, 97, 111, 112, 113, 127, 128}) {
      if (m > tokens) continue;
      if (!cases.takes_next()) continue;
      Problem problem(m, 16 * 6 - 8, 64 * (2 + m % 3), tokens, {5, 1, 1 + m % 2}, m % 3 ? 8 : 0,
                      m % 5 ? 8 : 0);
      expect_integers_right(problem, random);
    }
}

// Outputs of eight rows at once, one by one where n ends, and one by one where rows of y are not
// aligned.
TEST(every_tail_of_n) {
  Random random(2);
  Cases cases(61);
  for (const int tokens : kWarpgroupTokens)
    for (int n = 1; n <= 84; n += n < 34 ? 1 : 5) {
      if (!cases.takes_next()) continue;
      Problem problem(tokens - n % 17, n, 128, tokens, {3, 1, n % 2 + 1}, 16, 8);
      if (n % 3 == 0) problem.y_gap = n % 9;
      if (n % 3 == 1) problem.y_offset = n % 8;
      fill_bias(problem, random);
      expect_integers_right(problem, random);
    }
}

// The last cluster has one row: with more blocks some add up nothing.
TEST(every_number_of_blocks_and_turns) {
  Random random(3);
  Cases cases(60, 37);
  for (const int tokens : kWarpgroupTokens)
    for (int blocks = 1; blocks <= arch::kMostClusterBlocks; ++blocks)
      for (int turns = 1; turns <= turns_of(tokens); ++turns) {
        if (!cases.takes_next()) continue;
        const int most = groups_of(tokens) / turns * kGroupTileRows;
        const ClusterShape shape = within_limits(
            tokens, {std::max(1, most - (blocks + turns) % kGroupTileRows), turns, blocks});
        const int columns = blocks * turns + (blocks + turns) % 3 * 3;
        Problem problem(blocks % 3 ? 17 : tokens - turns, 16 * (shape.rows + 1) - 5, 64 * columns,
                        tokens, shape);
        expect_integers_right(problem, random);
      }
}

// Every wave of a block has a row, and every byte of its memory a use.
TEST(blocks_that_are_full) {
  Random random(4);
  Cases cases(30, 13);
  for (const int tokens : kWarpgroupTokens)
    for (int turns = 1; turns <= turns_of(tokens); ++turns)
      for (const int blocks : {1, 2, 4}) {
        if (!cases.takes_next()) continue;
        const ClusterShape shape =
            within_limits(tokens, {groups_of(tokens) / turns * kGroupTileRows, turns, blocks});
        Problem problem(tokens, 32 * shape.rows, 64 * blocks * (turns + 2), tokens, shape);
        fill_bias(problem, random);
        expect_integers_right(problem, random);
      }
}

// Every number of rows, so that some groups have waves without one.
TEST(every_number_of_rows) {
  Random random(5);
  Cases cases(90);
  for (const int tokens : kWarpgroupTokens)
    for (int rows = 1; rows <= groups_of(tokens) * kGroupTileRows; ++rows) {
      if (!cases.takes_next()) continue;
      const int row_groups = (rows + kGroupTileRows - 1) / kGroupTileRows;
      const ClusterShape shape = {rows, std::min(groups_of(tokens) / row_groups, turns_of(tokens)),
                                  1};
      Problem problem(tokens - rows, 16 * rows + 16 * (rows / 2) + 3, 64 * 7, tokens, shape);
      expect_integers_right(problem, random);
    }
}

// The ring of x goes round several times, and a wave reads its index words in three batches; turns
// that divide the ring and turns that do not.
TEST(long_stretches) {
  Random random(6);
  Cases cases(40);
  for (const int tokens : kWarpgroupTokens)
    for (int turns = 1; turns <= turns_of(tokens); ++turns) {
      if (!cases.takes_next()) continue;
      const int blocks = turns == 2 ? 2 : 1;
      Problem problem(tokens - turns, 16 * 3, 64 * blocks * (66 * turns + turns / 2), tokens,
                      {3, turns, blocks});
      expect_integers_right(problem, random);
    }
}

// Every wave of a full block brings columns of x, each the next but so many.
TEST(long_stretches_of_full_blocks) {
  Random random(18);
  Cases cases(3);
  for (const int tokens : kWarpgroupTokens)
    for (int turns = 1; turns <= turns_of(tokens); ++turns) {
      if (warpgroup_config(tokens).permutes || !cases.takes_next()) continue;
      const ClusterShape shape =
          within_limits(tokens, {groups_of(tokens) / turns * kGroupTileRows, turns, 1});
      Problem problem(17, 16 * shape.rows, 64 * 41 * turns, tokens, shape);
      expect_integers_right(problem, random);
    }
}

// A block with fewer columns than turns: some groups idle.
TEST(fewer_columns_than_turns) {
  Random random(7);
  Cases cases(13);
  for (const int tokens : kWarpgroupTokens)
    for (const int columns : {1, 2, 3, 5}) {
      if (!cases.takes_next()) continue;
      const int turns = turns_of(tokens), blocks = columns == 5 ? 2 : 1;
      Problem problem(tokens - columns, 16 * 6 - 3, 64 * columns, tokens, {4, turns, blocks});
      expect_integers_right(problem, random);
    }
}

TEST(lists_of_every_length) {
  Random random(8);
  Cases cases(11);
  for (const int tokens : kWarpgroupTokens)
    for (const ClusterShape asked : {ClusterShape{11, 1, 1}, {4, 3, 2}}) {
      if (!cases.takes_next()) continue;
      const ClusterShape shape = within_limits(tokens, asked);
      Problem problem(tokens - 3, kTileRows * 11, kTileColumns * 6, tokens, shape);
      fill_integers(problem, random);
      put_lists_of_every_length(problem, random);
      problem.pack();
      expect_same(run_warpgroup(problem, problem.view()), integer_product(problem), problem.w.n,
                  name_of(problem));
    }
}

TEST(strided_rows) {
  Random random(9);
  Cases cases(17, 5);
  for (const int tokens : kWarpgroupTokens)
    for (const int64_t gap : {0, 8, 24, 4096}) {
      if (!cases.takes_next()) continue;
      Problem problem(tokens - 1, 136, 192, tokens, {4, 1, 2}, gap, 8);
      problem.y_gap = gap;
      expect_integers_right(problem, random);
    }
}

TEST(slices_are_views) {
  Random random(10);
  Cases cases(6, 2);
  for (const int tokens : kWarpgroupTokens) {
    if (!cases.takes_next()) continue;
    Problem part(tokens, 300, 192, tokens, {7, 1, 3});
    Problem all(1, 16 * 2 + 300 + 20, 64 + 192 + 64, tokens, {7, 1, 3});
    fill_integers(all, random);
    fill_integers(part, random);
    all.pack();
    const PackedView view = slice_into(part, all, 2, 1);
    expect_same(run_warpgroup(part, view), integer_product(part), 300, name_of(part));
  }
}

TEST(values_of_a_model) {
  Random random(11);
  Cases cases(5);
  for (const int tokens : kWarpgroupTokens)
    for (const int rarity : {500, 40, 25, 8}) {  // lists of one, of more than 32, raw tiles
      if (!cases.takes_next()) continue;
      const ClusterShape shape =
          within_limits(tokens, rarity == 40 ? ClusterShape{4, 3, 2} : ClusterShape{6, 1, 2});
      Problem problem(tokens - 4, kMachineIsFast ? 270 : 75, 64 * 9, tokens, shape, 24);
      fill_bias(problem, random);
      fill_model(problem, random, rarity);
      problem.pack();
      expect_within_bound(run_warpgroup(problem, problem.view()), integer_product(problem), problem,
                          join("one in ", rarity, ", ", name_of(problem)));
    }
}

TEST(special_values_reach_the_multiplier) {
  Random random(12);
  Cases cases(5);
  for (const int tokens : kWarpgroupTokens)
    for (const bool infinite_x : {false, true}) {
      if (!cases.takes_next()) continue;
      Problem problem(tokens - 2, 48, 256, tokens, {3, 1, 2});
      fill_model(problem, random, 1'000'000'000);
      put_specials_for_any_order(problem, random, infinite_x);
      problem.pack();
      expect_within_bound(run_warpgroup(problem, problem.view()), integer_product(problem), problem,
                          name_of(problem));
    }
}

TEST(hostile_index_words_never_read_outside_the_table) {
  Random random(13);
  Cases cases(31);
  for (const int tokens : kWarpgroupTokens)
    for (const uint32_t word : kHostileIndexWords) {
      if (!cases.takes_next()) continue;
      Problem problem(17, 32, 128, tokens, {2, 1, static_cast<int>(word % 2) + 1});
      fill_integers(problem, random);
      problem.pack();
      problem.packed.index.assign(4, word);
      name_escapes_once(problem);
      run_warpgroup(problem, problem.view());  // memcheck reports any read outside
    }
}

TEST(equal_launches_give_equal_bits) {
  Random random(14);
  Cases cases(12, 2);
  const int64_t n = kMachineIsFast ? 400 : 75;
  for (const int tokens : kWarpgroupTokens)
    for (const ClusterShape asked : {ClusterShape{3, 3, 2}, {11, 1, 1}}) {
      if (!cases.takes_next()) continue;
      Problem problem(tokens, n, 64 * (kMachineIsFast ? 20 : 7), tokens,
                      within_limits(tokens, asked));
      fill_model(problem, random, 200);
      problem.pack();
      const std::vector<uint16_t> first = run_warpgroup(problem, problem.view());
      for (int turn = 0; turn < (kMachineIsFast ? 3 : 1); ++turn)
        expect_same(run_warpgroup(problem, problem.view()), first, n, name_of(problem));
    }
}

// More tokens than the kernel takes: rows of the grid share them out.
TEST(several_tiles_of_tokens) {
  Random random(17);
  Cases cases(9, 6);
  for (const int tokens : kWarpgroupTokens)
    for (const int m : {tokens + 1, 2 * tokens, 3 * tokens - 7}) {
      if (!cases.takes_next()) continue;
      Problem problem(m, 16 * 5 - 3, 64 * 4, tokens, {3, 1, 1 + m % 2});
      fill_bias(problem, random);
      expect_integers_right(problem, random);
    }
}

// More blocks than an H200 has multiprocessors.
TEST(problems_that_fill_the_card) {
  Random random(15);
  Cases cases(14);
  for (const int tokens : kWarpgroupTokens)
    for (const ClusterShape shape : {ClusterShape{2, 1, 2}, {1, 1, 1}, {3, 1, 8}}) {
      if (!cases.takes_next()) continue;
      const int64_t rows = int64_t{kMachineBlocks} * shape.rows / shape.blocks;
      Problem problem(tokens == 128 ? 128 : 18, 16 * (rows + 1) - 3, 64 * (shape.blocks + 1),
                      tokens, shape);
      expect_integers_right(problem, random);
    }
}

TEST(shapes_of_its_own_choice) {
  Random random(16);
  Cases cases(50);
  const int64_t sizes[][2] = {{64, 64},        {48, 640},     {16 * 40, 128}, {100, 64 * 17},
                              {16 * 300, 256}, {24, 64 * 90}, {16 * 133, 64}};
  for (const int tokens : kWarpgroupTokens)
    for (const auto& [n, k] : sizes) {
      if (!cases.takes_next()) continue;
      Problem problem(n > 1000 ? 17 : tokens, n, k, tokens, {});
      fill_integers(problem, random);
      problem.pack();
      problem.shape =
          warpgroup_shape(warpgroup_config(tokens), problem.view(), 1, kCard, kCardSharedBytes);
      expect_same(run_warpgroup(problem, problem.view()), integer_product(problem), n,
                  name_of(problem));
    }
}

}  // namespace
}  // namespace nf12::test
