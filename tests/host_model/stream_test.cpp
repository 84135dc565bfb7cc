// The shipped streaming kernel, in the host model or on a card (machine.hpp): against integers,
// where any order of a sum is exact, and against a reference that adds in the order of the model's
// matrix instruction; a card has its own order, and is held to the bound.
#define NF12_HOST_FRAGMENTS MmaFragments
#include <algorithm>
#include <cmath>

#include "csrc/format/escapes.hpp"
#include "csrc/gemm/forms.hpp"
#include "csrc/gemm/stream/instances/configs.hpp"
#include "csrc/gemm/stream/kernel.hpp"
#include "csrc/gemm/stream/launch.hpp"
#include "tests/host_model/gemm_problem.hpp"
#include "tests/host_model/machine.hpp"

namespace nf12::test {
namespace {

constexpr uint64_t kFlag = 0x123456789ABCDEF1;  // of every launch here, as of a graph's replays

struct Problem : GemmProblem {
  StreamShape shape = {.blocks = 2, .shares_rows = false};

  Problem(int64_t m, int64_t n, int64_t k, int64_t x_gap = 0, int64_t x_offset = 0)
      : GemmProblem(m, n, k, x_gap, x_offset) {}
  // Which compiled form takes it.
  int tokens() const {
    return *std::ranges::find_if(kStreamTokens, [&](int form) { return form >= x.m; });
  }
  StreamConfig config() const { return stream_config(tokens()); }
};

// With its grid set, of blocks that all have something.
StreamParams stream_params(Problem& problem, const PackedView& view, uint16_t* y,
                           int64_t y_stride) {
  StreamParams p = {};
  p.gemm = params_of(problem, view, y, y_stride);
  StreamShape& shape = problem.shape;
  const int64_t units = tile_rows(view.n) * (shape.shares_rows ? tile_columns(view.k) : 1);
  shape.blocks = std::min(shape.blocks, units);
  stream_grid(problem.config(), p, shape);
  return p;
}

// The kernel over all blocks, `launches` times with the same memory.
std::vector<uint16_t> run_stream(Problem& problem, const PackedView& view, uint64_t seed,
                                 int launches = 1) {
  Outputs y(problem.x.m, view.n);
  StreamParams p = stream_params(problem, view, y.data(), y.stride);
  EXPECT(stream_takes(view) && rows_are_aligned(p.gemm.x, p.gemm.x_stride, problem.x.m),
         "x stride ", p.gemm.x_stride);
  const Grid grid = stream_grid(problem.config(), p, problem.shape);
  GuardedBuffer<FlaggedSum> sums(stream_workspace_bytes(problem.config(), problem.shape) /
                                 sizeof(FlaggedSum));
  p.sums = sums.data();
  p.flag = kFlag;
  std::vector<arch::host::Buffer> buffers = inputs_of(problem, p.gemm);
  buffers.push_back(y.buffer());
  if (sums.size() > 0)
    buffers.push_back({sums.data(), sums.size() * sizeof(FlaggedSum), true, "sums"});
  const auto of_form = [&](const auto& body) {
    return with_tokens<kStreamTokens>(problem.tokens(), body);
  };
  const int shared_bytes = of_form([]<int t>(std::integral_constant<int, t>) {
    return StreamPlan<stream_config(t)>::kSharedBytes;
  });
  try {
    for (int i = 0; i < launches; ++i)
      run_kernel({"nf12_gemm_stream_t" + std::to_string(problem.tokens()), static_cast<int>(grid.x),
                  static_cast<int>(grid.y), problem.config().waves, seed, buffers, shared_bytes},
                 p, [&] {
                   of_form([&]<int t>(std::integral_constant<int, t>) {
                     stream_gemm<stream_config(t)>(p);
                   });
                 });
  } catch (const arch::host::Report& report) {
    EXPECT(false, report.what());
  }
  for (int64_t i = 0; i < sums.size(); ++i)
    EXPECT(sums[i].flag != kFlag, "the next launch would take sum ", i, " for its own");
  return y.rows();
}

// The order of the model's multiply_half_fragment and of stream/kernel.hpp, written down once more.
std::vector<uint16_t> reference(Problem& problem, const PackedView& view) {
  using arch::MmaFragments;
  const int waves = problem.config().waves;
  const StreamParams p = stream_params(problem, view, nullptr, 0);
  const std::vector<int> order = columns_in_order<MmaFragments>();
  // Sums in a row: of a tile column, of a wave, of a block. -0 changes none.
  struct Sum {
    int of = -1;
    float value = -0.0f;
  };
  std::vector<uint16_t> out(problem.x.m * view.n);
  for (int64_t row = 0; row < view.n; ++row)
    for (int64_t t = 0; t < problem.x.m; ++t) {
      float total = -0.0f;
      Sum of_block, of_wave;
      for (int column = 0; column < p.columns; ++column) {
        const int tile = static_cast<int>(row / kTileRows) * p.columns + column;
        int block = 0, wave = 0;
        while (p.start_of(block + 1) <= tile) ++block;
        const int begin = p.start_of(block), tiles = p.start_of(block + 1) - begin;
        while (tiles * (wave + 1) / waves <= tile - begin) ++wave;
        if (block != of_block.of || wave != of_wave.of) {
          of_block.value += of_wave.value;
          of_wave = {wave, 0};
        }
        if (block != of_block.of) {
          total += of_block.value;
          of_block = {block, -0.0f};
        }
        for (const int i : order) {
          const int64_t k = int64_t{kTileColumns} * column + i;
          of_wave.value += value_of(scaled_bits(problem.w.at(0, row, k), view.base)) *
                           value_of(problem.x.at(t, k));
        }
      }
      total += of_block.value + of_wave.value;
      const float bias = problem.bias.empty() ? -0.0f : value_of(problem.bias[row]);
      out[t * view.n + row] = finish(total, p.gemm.scale, bias);
    }
  return out;
}

std::string name_of(const Problem& problem) {
  return join("m ", problem.x.m, ", n ", problem.w.n, ", k ", problem.w.k, ", x stride ",
              problem.x.stride, ", blocks ", problem.shape.blocks,
              problem.shape.shares_rows ? " that share rows" : "");
}

void expect_integers_right(Problem& problem, Random& random) {
  fill_integers(problem, random);
  problem.pack();
  expect_same(run_stream(problem, problem.view(), random()), integer_product(problem), problem.w.n,
              name_of(problem));
}

void expect_model_right(Problem& problem, const std::string& what) {
  const std::vector<uint16_t> wanted = reference(problem, problem.view());
  expect_in_model_order(run_stream(problem, problem.view(), 1), wanted, problem,
                        what + ", " + name_of(problem));
}

TEST(every_token_count_multiplies_integers_exactly) {
  Random random(1);
  for (int m = 1; m <= kStreamMostTokens; m += m < 18 ? 1 : 7) {
    Problem problem(m, m % 2 ? 33 : 16, 64 * (2 + m % 5), 8);
    expect_integers_right(problem, random);
  }
}

// Fewer tiles than waves, as many, and so many that a wave's run crosses rows and batches of 32
// index words.
TEST(every_share_of_tiles) {
  Random random(2);
  for (const int64_t columns : {2, 3, 7, 12, 31, 32, 33, 50}) {
    Problem problem(2, 35, 64 * columns);
    problem.shape.blocks = columns % 3 + 1;
    expect_integers_right(problem, random);
  }
  Problem tall(1, 16 * 32, 128);  // as many tile rows as a block may have
  tall.shape.blocks = 1;
  expect_integers_right(tall, random);
  Problem long_runs(1, 16 * 30, 64 * 36);
  long_runs.shape.blocks = 1;
  expect_integers_right(long_runs, random);
}

TEST(blocks_of_unequal_rows) {
  Random random(3);
  for (const int64_t blocks : {1, 3, 4, 7}) {
    Problem problem(3, 16 * 7 - 5, 192, 16, 8);
    problem.shape.blocks = blocks;
    fill_bias(problem, random);
    expect_integers_right(problem, random);
  }
}

// A row in two blocks, in many, of one tile each; a block with parts of two rows and whole ones;
// launched again with the memory as the launch before left it.
TEST(blocks_that_share_rows) {
  Random random(10);
  for (const int m : {1, 3, 8, 9, 16, 29})
    for (const int64_t blocks : {1, 2, 3, 5, 8, 20}) {
      Problem problem(m, 16 * 5 - 3, 64 * 4);
      problem.shape = {.blocks = blocks, .shares_rows = true};
      fill_bias(problem, random);
      expect_integers_right(problem, random);
      expect_same(run_stream(problem, problem.view(), random(), 3), integer_product(problem),
                  problem.w.n, "launched three times, " + name_of(problem));
    }
  for (const int64_t columns : {2, 31, 33, 64}) {
    Problem problem(2, 16 * 7, 64 * columns);
    problem.shape = {.blocks = 3, .shares_rows = true};
    expect_integers_right(problem, random);
  }
}

TEST(the_order_of_the_sum_is_the_promised_one) {
  Random random(4);
  for (const int m : {8, 9, 17}) {
    Problem problem(m, 50, 64 * 21);
    fill_model(problem, random, 1'000'000'000);
    make_order_matter(problem);
    problem.pack();
    expect_model_right(problem, "clean");
    for (const int64_t blocks : {7, 20}) {
      problem.shape = {.blocks = blocks, .shares_rows = true};
      expect_model_right(problem, "clean");
    }
  }
}

TEST(escapes_of_every_kind) {
  Random random(5);
  for (const int m : {1, 16, 32})
    for (const int rarity : {500, 40, 25, 8}) {  // lists of one, of more than 32, raw tiles
      Problem problem(m, 33, 64 * 13);
      fill_model(problem, random, rarity);
      problem.pack();
      expect_model_right(problem, join("one in ", rarity));
    }
}

TEST(escapes_at_every_row_and_column) {
  for (int position = 0; position < kTileWeights; position += 13) {
    Problem problem(1, 32, 128);
    for (int64_t row = 0; row < 32; ++row)
      for (int64_t k = 0; k < 128; ++k) problem.w.at(0, row, k) = exact_bits(1);
    const int row = position / 64 + 16 * (position % 2);
    const int column = position % 64 + 64 * (position % 3 % 2);
    problem.w.at(0, row, column) = 0;
    for (int64_t k = 0; k < 128; ++k) problem.x.at(0, k) = exact_bits(k == column ? 64 : 1);
    problem.pack();
    expect_same(run_stream(problem, problem.view(), position), integer_product(problem), 32,
                join("escape at row ", row, ", column ", column));
  }
}

TEST(special_values_reach_the_multiplier) {
  Random random(6);
  Problem problem(3, 48, 256);
  fill_model(problem, random, 1'000'000'000);
  put_special_weights(problem);
  put_special_activations(problem, random);
  problem.pack();
  expect_model_right(problem, "specials");
}

TEST(hostile_index_words_never_read_outside_the_table) {
  Random random(7);
  for (const uint32_t word : kHostileIndexWords) {
    Problem problem(2, 32, 128);
    fill_integers(problem, random);
    problem.pack();
    problem.packed.index.assign(4, word);
    name_escapes_once(problem);
    run_stream(problem, problem.view(), 1);  // the model reports any read outside
  }
}

TEST(the_order_of_lanes_decides_nothing) {
  Random random(8);
  Problem problem(9, 33, 320);
  fill_model(problem, random, 50);
  problem.pack();
  const std::vector<uint16_t> first = run_stream(problem, problem.view(), 1);
  for (uint64_t seed = 2; seed < 5; ++seed)
    expect_same(run_stream(problem, problem.view(), seed), first, 33, join("seed ", seed));
}

TEST(problems_that_fill_the_machine) {
  Random random(9);
  for (const int m : {1, 16, 32}) {
    const auto expect_right = [&](int64_t rows, int64_t k) {
      Problem problem(m, 16 * rows - 3, k);
      problem.shape = stream_shape(problem.config(), weight_of(problem.w.n, k), kMachineBlocks);
      expect_integers_right(problem, random);
    };
    const int most = Problem(m, 1, 64).config().waves;
    // Some blocks with a row more; as many rows as one round takes; another round.
    for (const int rows : {2, most - 1, most}) expect_right(rows * kMachineBlocks + 1, 128);
    expect_right(kMachineBlocks + 1, 64 * 90);  // a second row would take long: shared
    expect_right(2 * kMachineBlocks / 5, 64 * 90);
  }
}

}  // namespace
}  // namespace nf12::test
