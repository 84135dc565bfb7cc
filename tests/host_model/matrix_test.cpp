// The shipped matrix kernel, every token shape, in the host model or on a card (machine.hpp):
// against integers, where any order of a sum is exact, and against a reference that adds in the
// order of the model's matrix instruction; a card has its own order, and is held to the bound.
// Built once with each vendor's fragment map.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "csrc/format/escapes.hpp"
#include "csrc/gemm/matrix/instances/configs.hpp"
#include "csrc/gemm/matrix/kernel.hpp"
#include "csrc/gemm/matrix/launch.hpp"
#include "tests/host_model/gemm_problem.hpp"
#include "tests/host_model/machine.hpp"

namespace nf12::test {
namespace {

constexpr int kShapes[] = {16, 32, 64, 128};  // tokens of a block

void run_shape(int tokens, const GemmParams& p) {
  switch (tokens) {
    case 16:
      return matrix_gemm<matrix_config(16)>(p);
    case 32:
      return matrix_gemm<matrix_config(32)>(p);
    case 64:
      return matrix_gemm<matrix_config(64)>(p);
    default:
      return matrix_gemm<matrix_config(128)>(p);
  }
}

// The smallest shape that takes all tokens in one block.
int shape_of(int64_t m) { return m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : 128; }

struct Problem : GemmProblem {
  int splits = 1;
  int tokens;  // of a block

  Problem(int64_t m, int64_t n, int64_t k, int64_t x_gap = 0, int64_t x_offset = 0)
      : GemmProblem(m, n, k, x_gap, x_offset), tokens(shape_of(m)) {}
};

// The kernel over all blocks.
std::vector<uint16_t> run_matrix(Problem& problem, const PackedView& view, uint64_t seed) {
  Outputs y(problem.x.m, view.n);
  GemmParams p = params_of(problem, view, y.data(), y.stride);
  const MatrixConfig config = matrix_config(problem.tokens);
  EXPECT(matrix_takes(config, p.x_stride), "x stride ", p.x_stride);
  const Grid grid = matrix_grid(config, p, problem.splits);
  run_split("nf12_gemm_matrix_t" + std::to_string(problem.tokens), grid, config.waves, seed,
            problem, p, y, [&](const GemmParams& q) { run_shape(problem.tokens, q); });
  return y.rows();
}

// The order of the model's multiply_fragment and of matrix/kernel.hpp, written down once more.
std::vector<uint16_t> reference(Problem& problem, const PackedView& view) {
  using arch::Fragments;
  const int m = static_cast<int>(problem.x.m);
  GemmParams p = params_of(problem, view, nullptr, 0);
  matrix_grid(matrix_config(problem.tokens), p, problem.splits);
  const auto columns = static_cast<int>(tile_columns(view.k));
  const std::vector<int> order = columns_in_order<Fragments>();
  std::vector<float> w(columns * kTileColumns), x(m * w.size());
  for (int t = 0; t < m; ++t)
    for (int64_t k = 0; k < view.k; ++k) x[t * w.size() + k] = value_of(problem.x.at(t, k));
  std::vector<uint16_t> out(m * view.n);
  for (int64_t row = 0; row < view.n; ++row) {
    for (int column = 0; column < columns; ++column) {
      const bool raw = IndexWord::from_bits(view.index_word(row / kTileRows, column)).is_raw();
      for (int i = 0; i < kTileColumns; ++i) {
        const int64_t k = int64_t{kTileColumns} * column + i;
        w[k] = value_of(k < view.k ? scaled_bits(problem.w.at(0, row, k), view.base)
                        : raw      ? 0
                                   : 0x3800);
      }
    }
    for (int t = 0; t < m; ++t) {
      float total = 0;
      for (int split = 0; split < p.splits; ++split) {
        const int end = std::min(columns, (split + 1) * p.columns_per_split);
        float sum = 0;
        for (int column = split * p.columns_per_split; column < end; ++column)
          for (const int i : order) {
            const size_t k = kTileColumns * column + i;
            sum += w[k] * x[t * w.size() + k];
          }
        total += sum;
      }
      const float bias = problem.bias.empty() ? -0.0f : value_of(problem.bias[row]);
      out[t * view.n + row] = finish(total, p.scale, bias);
    }
  }
  return out;
}

std::string name_of(const Problem& problem) {
  return join("m ", problem.x.m, ", n ", problem.w.n, ", k ", problem.w.k, ", x stride ",
              problem.x.stride, ", splits ", problem.splits, ", block of ", problem.tokens);
}

void expect_integers_right(Problem& problem, Random& random) {
  fill_integers(problem, random);
  problem.pack();
  expect_same(run_matrix(problem, problem.view(), random()), integer_product(problem), problem.w.n,
              name_of(problem));
}

void expect_model_right(Problem& problem, const std::string& what) {
  const std::vector<uint16_t> wanted = reference(problem, problem.view());
  expect_in_model_order(run_matrix(problem, problem.view(), 1), wanted, problem,
                        what + ", " + name_of(problem));
}

struct Shape {
  int64_t n, k;
};

TEST(every_shape_multiplies_integers_exactly) {
  Random random(1);
  // Columns: none in pairs, one pair and a tail, a pair and one more, two pairs and a tail. Rows:
  // one, a whole tile, more than a wave's, more than a block's.
  const Shape shapes[] = {{1, 1}, {16, 63}, {33, 130}, {17, 192}, {130, 257}};
  int turn = 0;
  for (const int m : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 130})
    for (int i = 0; i < (m < 33 ? 3 : 1); ++i) {
      const Shape shape = shapes[turn++ % std::size(shapes)];
      Problem problem(m, shape.n, shape.k, 2);
      expect_integers_right(problem, random);
    }
}

TEST(every_number_of_columns) {
  Random random(2);
  for (const int m : {16, 32, 64, 128})
    for (int columns = 1; columns <= (m == 16 ? 9 : 3); ++columns) {
      Problem problem(m, 5, 64 * columns);
      expect_integers_right(problem, random);
    }
}

TEST(every_shape_takes_every_m) {
  Random random(3);
  for (const int tokens : kShapes)
    for (const int m : {1, 40, 130}) {
      Problem problem(m, 20, 200, 1);
      problem.tokens = tokens;
      expect_integers_right(problem, random);
    }
}

TEST(rows_of_x_may_start_anywhere) {
  Random random(4);
  for (const int64_t gap : {0, 1, 3, 8})
    for (const int64_t offset : {0, 1, 4, 8}) {
      Problem problem(18, 18, 131, gap, offset);
      expect_integers_right(problem, random);
    }
  Problem repeated(20, 18, 131, -131);  // one row, as torch's expand makes it
  expect_integers_right(repeated, random);
}

TEST(the_order_of_the_sum_is_the_promised_one) {
  Random random(5);
  for (const int tokens : kShapes) {
    Problem problem(tokens - 1, 35, 450, tokens % 32 ? 1 : 0);
    fill_model(problem, random, 1'000'000'000);
    problem.pack();
    expect_model_right(problem, "clean");
  }
}

TEST(escapes_of_every_kind) {
  Random random(6);
  for (const int tokens : kShapes)
    for (const int rarity : {500, 25, 8}) {  // lists of one to raw tiles
      Problem problem(tokens, 33, 330, 1);
      fill_model(problem, random, rarity);
      problem.pack();
      expect_model_right(problem, join("one in ", rarity));
    }
}

TEST(escapes_at_every_row_and_column) {
  for (int position = 0; position < kTileWeights; position += 13) {
    Problem problem(1, 32, 64);
    for (int64_t row = 0; row < 32; ++row)
      for (int64_t k = 0; k < 64; ++k) problem.w.at(0, row, k) = exact_bits(1);
    const int row = position / 64 + 16 * (position % 2), column = position % 64;
    problem.w.at(0, row, column) = 0;
    for (int64_t k = 0; k < 64; ++k) problem.x.at(0, k) = exact_bits(k == column ? 64 : 1);
    problem.pack();
    expect_same(run_matrix(problem, problem.view(), position), integer_product(problem), 32,
                join("escape at row ", row, ", column ", column));
  }
}

TEST(special_values_reach_the_multiplier) {
  Random random(7);
  for (const int m : {3, 64}) {
    Problem problem(m, 48, 200);
    fill_model(problem, random, 1'000'000'000);
    put_special_weights(problem);
    for (size_t i = 0; i < std::size(kSpecialWeights); ++i)
      problem.w.at(0, 4 * i + 1, 199 - i) = kSpecialWeights[i];  // in the tail
    put_special_activations(problem, random);
    problem.pack();
    expect_model_right(problem, "specials");
  }
}

TEST(every_base_is_scaled_back) {
  Random random(8);
  for (const int base : {kMinBase, 107, 112, 120, kMaxBase}) {
    Problem problem(17, 20, 150);
    fill_model(problem, random, 1'000'000'000);
    for (int64_t row = 0; row < 20; ++row)
      for (int64_t k = 0; k < 150; ++k) {
        uint16_t& w = problem.w.at(0, row, k);
        w = static_cast<uint16_t>((w & 0x807F) | (base + random() % 16) << 7);
      }
    problem.pack(base);
    fill_bias(problem, random);
    expect_model_right(problem, join("base ", base));
  }
}

TEST(splits_are_added_in_order) {
  Random random(9);
  for (const int m : {1, 33, 130})
    for (const int splits : {2, 3, 7}) {
      Problem problem(m, 35, 1000, 2);
      if (m > 100 && splits > 2) continue;
      problem.splits = splits;
      fill_bias(problem, random);
      expect_integers_right(problem, random);
      fill_model(problem, random, 300);
      problem.pack();
      expect_model_right(problem, "split");
    }
}

TEST(slices_are_views) {
  Random random(10);
  Problem whole(4, 64, 320);
  fill_integers(whole, random);
  whole.pack();
  Problem sliced(4, 32, 192);  // tile rows 1..2 of four and tile columns 2..4 of five
  const PackedView part = slice_into(sliced, whole, 1, 2);
  for (int t = 0; t < 4; ++t)
    for (int64_t k = 0; k < 192; ++k) sliced.x.at(t, k) = whole.x.at(t, k);
  expect_same(run_matrix(sliced, part, 1), integer_product(sliced), 32, "slice");
}

TEST(hostile_index_words_never_read_outside_the_table) {
  Random random(11);
  for (const uint32_t word : kHostileIndexWords) {
    Problem problem(2, 32, 64);
    fill_integers(problem, random);
    problem.pack();
    problem.packed.index = {word, word};
    run_matrix(problem, problem.view(), 1);  // the model reports any read outside
  }
}

TEST(the_order_of_lanes_decides_nothing) {
  Random random(12);
  Problem problem(33, 33, 330, 1);
  fill_model(problem, random, 50);
  problem.pack();
  const std::vector<uint16_t> first = run_matrix(problem, problem.view(), 1);
  for (uint64_t seed = 2; seed < 6; ++seed)
    expect_same(run_matrix(problem, problem.view(), seed), first, 33, join("seed ", seed));
}

// Both maps must be bijections, or a fragment would miss a weight.
template <typename Fragments>
void expect_fragments_cover_a_tile() {
  std::vector<int> seen(arch::kWave * 16), sums(256);
  for (int row = 0; row < kTileRows; ++row)
    for (int column = 0; column < kTileColumns; column += 2) {
      const int lane = Fragments::owner(row, column), slot = Fragments::slot(row, column);
      ++seen[lane * 16 + slot];
      const int run = slot % Fragments::kRuns, pair = slot / Fragments::kRuns;
      EXPECT(Fragments::row(lane, run) == row, "row ", row);
      EXPECT(Fragments::column(lane) + 2 * pair == column, "column ", column);
      EXPECT(arch::slot_of_pair<Fragments>(run * 16 / Fragments::kRuns + pair) == slot, "slot ",
             slot);
      EXPECT(Fragments::owner(row, column + 1) == lane, "a pair is split");
    }
  for (int lane = 0; lane < arch::kWave; ++lane)
    for (int i = 0; i < arch::kFragmentSums; ++i)
      ++sums[Fragments::sum_row(lane, i) * 16 + Fragments::sum_token(lane, i)];
  for (const int count : seen) EXPECT(count == 1, "a register is named ", count, " times");
  for (const int count : sums) EXPECT(count == 1, "an output is named ", count, " times");
}

TEST(fragments_cover_a_tile) {
  expect_fragments_cover_a_tile<arch::WmmaFragments>();
  expect_fragments_cover_a_tile<arch::MmaFragments>();
}

TEST(problems_that_fill_the_machine) {
  Random random(13);
  for (const int tokens : kShapes) {
    const int block_rows = matrix_block_rows(matrix_config(tokens));
    Problem problem(tokens + 2, kMachineBlocks / 2 * block_rows - 15, 330, 2);
    problem.tokens = tokens;
    expect_integers_right(problem, random);
    Problem split(tokens, kMachineBlocks / 3 * block_rows, 640);
    split.splits = 3;
    expect_integers_right(split, random);
  }
}

}  // namespace
}  // namespace nf12::test
