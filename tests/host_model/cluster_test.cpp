// The shipped cluster kernel, in the host model or on a card (machine.hpp): against integers, where
// any order of a sum is exact, and against a reference that adds in the order that the kernel
// promises and the model's matrix instruction has; a card has its own order within an instruction,
// and is held to the bound.
#define NF12_HOST_FRAGMENTS MmaFragments
#include <algorithm>
#include <cmath>

#include "csrc/format/escapes.hpp"
#include "csrc/gemm/cluster/instances/configs.hpp"
#include "csrc/gemm/cluster/kernel.hpp"
#include "csrc/gemm/cluster/launch.hpp"
#include "csrc/gemm/stream/launch.hpp"
#include "tests/host_model/gemm_problem.hpp"
#include "tests/host_model/machine.hpp"

namespace nf12::test {
namespace {

constexpr int kCardSharedBytes = 227 * 1024;  // of a block, sm_90 and sm_100

struct Problem : GemmProblem {
  ClusterShape shape = {3, 1, 2};
  int tokens;  // of the compiled form

  Problem(int64_t m, int64_t n, int64_t k, int64_t x_gap = 0, int64_t x_offset = 0)
      : GemmProblem(m, n, k, x_gap, x_offset) {
    tokens = *std::lower_bound(std::begin(kClusterTokens), std::end(kClusterTokens), m);
  }
};

template <typename Body>
void with_form(int tokens, const Body& body) {
  with_tokens<kClusterTokens>(tokens, [&]<int t>(std::integral_constant<int, t>) {
    EXPECT(t == tokens, "no form of ", tokens, " tokens");
    body.template operator()<cluster_config(t)>();
  });
}

std::string name_of(const Problem& problem) {
  return join("m ", problem.x.m, " of ", problem.tokens, ", n ", problem.w.n, ", k ", problem.w.k,
              ", x stride ", problem.x.stride, ", rows ", problem.shape.rows, ", turns ",
              problem.shape.turns, ", blocks ", problem.shape.blocks);
}

// The kernel over all clusters.
std::vector<uint16_t> run_cluster(Problem& problem, const PackedView& view, uint64_t seed) {
  Outputs y(problem.x.m, view.n);
  ClusterParams p = {};
  p.gemm = params_of(problem, view, y.data(), y.stride);
  EXPECT(cluster_takes(view) && rows_are_aligned(p.gemm.x, p.gemm.x_stride, problem.x.m),
         "x stride ", p.gemm.x_stride);
  with_form(problem.tokens, [&]<ClusterConfig config>() {
    const ClusterShape shape = problem.shape;
    EXPECT(shape.rows * shape.turns <= config.waves && shape.turns <= config.columns &&
               problem.x.m <= config.tokens,
           name_of(problem));
    const Grid grid = cluster_grid(config, p, shape);
    const int bytes = ClusterPlan<config>::shared_bytes(shape.rows, shape.turns, shape.blocks);
    EXPECT(bytes <= kCardSharedBytes, bytes, " bytes: ", name_of(problem));
    std::vector<arch::host::Buffer> buffers = inputs_of(problem, p.gemm);
    buffers.push_back(y.buffer());
    try {
      run_kernel({"nf12_gemm_cluster_t" + std::to_string(problem.tokens), static_cast<int>(grid.x),
                  static_cast<int>(grid.y), config.waves + 1, seed, buffers, bytes, shape.blocks},
                 p, [&] { cluster_gemm<config>(p); });
    } catch (const arch::host::Report& report) {
      EXPECT(false, name_of(problem), ": ", report.what());
    }
  });
  return y.rows();
}

// The order of the model's multiply_half_fragment and of cluster/kernel.hpp, written down once
// more.
std::vector<uint16_t> reference(Problem& problem, const PackedView& view) {
  using arch::MmaFragments;
  const GemmParams p = params_of(problem, view, nullptr, 0);
  const int columns = static_cast<int>(tile_columns(view.k));
  const auto [rows, turns, blocks] = problem.shape;
  const std::vector<int> order = columns_in_order<MmaFragments>();
  std::vector<uint16_t> out(problem.x.m * view.n);
  for (int64_t row = 0; row < view.n; ++row)
    for (int64_t t = 0; t < problem.x.m; ++t) {
      float total = 0;
      for (int segment = 0; segment < blocks * turns; ++segment) {
        const int block = segment / turns, turn = segment % turns;
        float sum = 0;
        for (int column = columns * block / blocks + turn; column < columns * (block + 1) / blocks;
             column += turns)
          for (const int i : order) {
            const int64_t k = int64_t{kTileColumns} * column + i;
            sum += value_of(scaled_bits(problem.w.at(0, row, k), view.base)) *
                   value_of(problem.x.at(t, k));
          }
        total = segment == 0 ? sum : total + sum;
      }
      const float bias = problem.bias.empty() ? -0.0f : value_of(problem.bias[row]);
      out[t * view.n + row] = finish(total, p.scale, bias);
    }
  return out;
}

void expect_integers_right(Problem& problem, Random& random) {
  fill_integers(problem, random);
  problem.pack();
  expect_same(run_cluster(problem, problem.view(), random()), integer_product(problem), problem.w.n,
              name_of(problem));
}

void expect_model_right(Problem& problem, const std::string& what) {
  const std::vector<uint16_t> wanted = reference(problem, problem.view());
  expect_in_model_order(run_cluster(problem, problem.view(), 1), wanted, problem,
                        what + ", " + name_of(problem));
}

// The words of a row's pairs, each once; and no two of the 16 lanes whose 8 bytes are moved at once
// in one bank: four pairs of four rows, one pair of 16 rows.
template <int tokens>
void expect_segment_sound() {
  std::vector<bool> taken(kTileRows * tokens);
  for (int row = 0; row < kTileRows; ++row)
    for (int pair = 0; pair < tokens / 2; ++pair) {
      const int word = segment_word<tokens>(row, pair);
      EXPECT(word % 2 == 0 && word >= row * tokens && word < (row + 1) * tokens && !taken[word],
             tokens, " tokens, row ", row, ", pair ", pair, " at word ", word);
      taken[word] = true;
    }
  const auto expect_free_of_conflicts = [](const auto& word_of_lane) {
    int banks = 0;
    for (int lane = 0; lane < 16; ++lane) banks |= 1 << word_of_lane(lane) / 2 % 16;
    EXPECT(banks == 0xFFFF, tokens, " tokens: banks ", banks);
  };
  for (int row = 0; row < kTileRows; row += 4)
    for (int pair = 0; pair < tokens / 2; pair += 4)
      expect_free_of_conflicts(
          [&](int lane) { return segment_word<tokens>(row + lane / 4, pair + lane % 4); });
  for (int pair = 0; pair < tokens / 2; ++pair)
    expect_free_of_conflicts([&](int lane) { return segment_word<tokens>(lane, pair); });
}

TEST(sums_have_words_and_banks_of_their_own) {
  expect_segment_sound<24>();
  expect_segment_sound<32>();
  expect_segment_sound<48>();
  expect_segment_sound<64>();
}

TEST(every_edge_of_m_multiplies_integers_exactly) {
  Random random(1);
  for (const int m : {1, 8, 9, 17, 24, 25, 32, 33, 48, 49, 63, 64}) {
    Problem problem(m, m % 2 ? 33 : 16, 64 * (2 + m % 3), 8);
    expect_integers_right(problem, random);
  }
  for (const int tokens : kClusterTokens) {  // all but one token is past the last
    Problem problem(1, 16, 64 * 10);
    problem.tokens = tokens;
    expect_integers_right(problem, random);
  }
}

TEST(every_tail_of_n) {
  Random random(2);
  for (int n = 1; n <= 48; n += n < 18 ? 1 : 5) {
    Problem problem(n % 24 + 1, n, 128, 16, 8);
    problem.shape = {2, 1, n % 2 + 1};
    fill_bias(problem, random);
    expect_integers_right(problem, random);
  }
}

// The last cluster has one row, which is less than it has blocks: some add up nothing. With few
// columns some waves have no tile.
TEST(every_number_of_blocks_and_turns) {
  Random random(3);
  for (const int blocks : {1, 2, 3, 5, 8})
    for (int turns = 1; turns <= 4; ++turns) {
      const int rows = 1 + (blocks + turns) % 3;
      const int columns = turns % 2 ? blocks + 1 : 2 * blocks * turns - 3;
      Problem problem(turns < 4 ? 24 + 5 * blocks : 9, 16 * (rows + 1) - 5, 64 * columns);
      problem.shape = {rows, turns, blocks};
      expect_integers_right(problem, random);
    }
}

// Every wave of a block has a row, or a turn at one.
TEST(blocks_that_are_full) {
  Random random(4);
  for (const int tokens : kClusterTokens) {
    const int waves = cluster_config(tokens).waves;
    for (const int turns : {1, tokens == 64 ? 3 : 2}) {
      Problem problem(tokens - 5, 16 * (waves / turns + 1) - 3, 64 * (turns == 1 ? 3 : 7));
      problem.shape = {waves / turns, turns, turns == 1 ? 2 : 1};
      expect_integers_right(problem, random);
    }
  }
}

// The ring of x goes round several times, a wave reads its index words in more than one batch;
// turns that divide the ring and turns that do not.
TEST(long_stretches) {
  Random random(5);
  for (int turns = 1; turns <= 4; ++turns)
    for (const int tokens : {24, 64}) {
      Problem problem(tokens - turns, 32, 64 * (turns == 1 ? 67 : 36));
      problem.shape = {2, turns, turns == 1 ? 2 : 1};
      expect_integers_right(problem, random);
    }
}

// A card that has clusters of up to eight blocks, fewer of the large ones.
constexpr ClusterCounts kCard = {0, 132, 66, 40, 32, 24, 20, 16, 14};

TEST(shapes_of_its_own_choice) {
  Random random(6);
  const int64_t shapes[][3] = {{17, 64, 64}, {64, 48, 640}, {33, 16 * 40, 128}, {24, 100, 64 * 17}};
  for (const auto& [m, n, k] : shapes) {
    Problem problem(m, n, k);
    fill_integers(problem, random);
    problem.pack();
    problem.shape = cluster_shape(cluster_config(problem.tokens), problem.view(), m, kCard);
    expect_same(run_cluster(problem, problem.view(), random()), integer_product(problem), n,
                name_of(problem));
  }
}

// Those that the kernel can run, for weights that no test could multiply here.
TEST(every_choice_of_a_shape_is_within_the_limits) {
  for (const int tokens : kClusterTokens)
    for (const int64_t n : {1, 100, 4096, 11008, 28672, 151936})
      for (const int64_t k : {64, 128, 1024, 4096, 14336, 28672})
        for (const int64_t most : {1, 4, 8}) {
          PackedView view = {};
          view.n = n;
          view.k = k;
          ClusterCounts counts = kCard;
          std::fill(counts.begin() + most + 1, counts.end(), 0);
          with_form(tokens, [&]<ClusterConfig config>() {
            const ClusterShape shape = cluster_shape(config, view, tokens, counts);
            const std::string what =
                join(tokens, " tokens, n ", n, ", k ", k, ": rows ", shape.rows, ", turns ",
                     shape.turns, ", blocks ", shape.blocks);
            EXPECT(shape.rows >= 1 && shape.turns >= 1 && shape.blocks >= 1, what);
            EXPECT(shape.rows * shape.turns <= config.waves, what);
            EXPECT(shape.turns <= config.columns && shape.blocks <= most, what);
            const int bytes =
                ClusterPlan<config>::shared_bytes(shape.rows, shape.turns, shape.blocks);
            EXPECT(bytes <= kCardSharedBytes, bytes, " bytes, ", what);
          });
        }
}

TEST(the_order_of_the_sum_is_the_promised_one) {
  Random random(7);
  for (const ClusterShape shape : {ClusterShape{3, 1, 1}, {2, 3, 2}, {1, 2, 5}}) {
    Problem problem(17 + 8 * shape.blocks, 40, 64 * 13);
    problem.shape = shape;
    fill_model(problem, random, 1'000'000'000);
    make_order_matter(problem);
    problem.pack();
    expect_model_right(problem, "clean");
  }
}

TEST(escapes_of_every_kind) {
  Random random(8);
  for (const int rarity : {500, 40, 25, 8}) {  // lists of one, of more than 32, raw tiles
    Problem problem(rarity == 25 ? 64 : 18, 33, 64 * 9, 24);
    problem.shape = {3, rarity == 40 ? 2 : 1, 2};
    fill_bias(problem, random);
    fill_model(problem, random, rarity);
    problem.pack();
    expect_model_right(problem, join("one in ", rarity));
  }
}

TEST(special_values_reach_the_multiplier) {
  Random random(9);
  Problem problem(19, 48, 256);
  fill_model(problem, random, 1'000'000'000);
  put_special_weights(problem);
  put_special_activations(problem, random);
  problem.pack();
  expect_model_right(problem, "specials");
}

TEST(hostile_index_words_never_read_outside_the_table) {
  Random random(10);
  for (const uint32_t word : kHostileIndexWords) {
    Problem problem(18, 32, 128);
    problem.shape = {2, 1, static_cast<int>(word % 2) + 1};
    fill_integers(problem, random);
    problem.pack();
    problem.packed.index.assign(4, word);
    name_escapes_once(problem);
    run_cluster(problem, problem.view(), 1);  // the model reports any read outside
  }
}

TEST(the_order_of_lanes_decides_nothing) {
  Random random(11);
  Problem problem(20, 33, 64 * 20);
  problem.shape = {3, 2, 2};
  fill_model(problem, random, 200);
  problem.pack();
  const std::vector<uint16_t> first = run_cluster(problem, problem.view(), 1);
  for (uint64_t seed = 2; seed < 5; ++seed)
    expect_same(run_cluster(problem, problem.view(), seed), first, 33, join("seed ", seed));
}

TEST(problems_that_fill_the_machine) {
  Random random(12);
  for (const int m : {24, 64}) {
    Problem problem(m, 16 * (kMachineBlocks + 1) - 3, 320);
    problem.shape = {2, 1, 2};
    expect_integers_right(problem, random);
  }
}

}  // namespace
}  // namespace nf12::test
