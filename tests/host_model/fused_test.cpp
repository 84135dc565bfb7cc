// The shipped fused kernel at every token count, in the host model or on a card (machine.hpp): bit
// for bit against a reference that adds in the order the kernel's header promises, and against
// integers where any order is exact.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "csrc/format/escapes.hpp"
#include "csrc/gemm/fused/instances/configs.hpp"
#include "csrc/gemm/fused/kernel.hpp"
#include "csrc/gemm/fused/launch.hpp"
#include "tests/host_model/gemm_problem.hpp"

namespace nf12::test {
namespace {

template <int tokens>
void fused(const GemmParams& p) {
  fused_gemm<fused_config(tokens)>(p);
}
using FusedKernel = void (*)(const GemmParams&);
constexpr FusedKernel kFused[] = {nullptr,   fused<1>,  fused<2>,  fused<3>,  fused<4>,  fused<5>,
                                  fused<6>,  fused<7>,  fused<8>,  fused<9>,  fused<10>, fused<11>,
                                  fused<12>, fused<13>, fused<14>, fused<15>, fused<16>};

struct Problem : GemmProblem {
  int splits = 1;
  using GemmProblem::GemmProblem;
};

GemmParams fused_params(Problem& problem, const PackedView& view, uint16_t* y, int64_t y_stride) {
  GemmParams p = params_of(problem, view, y, y_stride);
  p.scalar_columns = scalar_columns_of(p.x, p.x_stride, p.m, view.k);
  return p;
}

// The kernel over all blocks.
std::vector<uint16_t> run_fused(Problem& problem, const PackedView& view, uint64_t seed) {
  const int m = static_cast<int>(problem.x.m);
  Outputs y(m, view.n);
  GemmParams p = fused_params(problem, view, y.data(), y.stride);
  const GemmConfig config = fused_config(m);
  const Grid grid = fused_grid(config, p, problem.splits);
  run_split("nf12_gemm_fused_m" + std::to_string(m), grid, config.waves, seed, problem, p, y,
            kFused[m]);
  return y.rows();
}

// The order of fused/kernel.hpp, written down once more.
std::vector<uint16_t> reference(Problem& problem, const PackedView& view) {
  const int m = static_cast<int>(problem.x.m);
  GemmParams p = fused_params(problem, view, nullptr, 0);
  const GemmConfig config = fused_config(m);
  fused_grid(config, p, problem.splits);
  const auto columns = static_cast<int>(tile_columns(view.k));
  std::vector<uint16_t> out;
  for (int t = 0; t < m; ++t) {
    for (int64_t row = 0; row < view.n; ++row) {
      float total = 0;
      for (int split = 0; split < p.splits; ++split) {
        const int begin = split * p.columns_per_split;
        const int end = std::min(columns, begin + p.columns_per_split);
        const int checked = std::max(begin, std::min(p.scalar_columns, end));
        float sum = 0;
        for (int wave = 0; wave < config.waves; ++wave) {
          float acc[2] = {};
          const auto add = [&](int column) {
            const bool raw =
                IndexWord::from_bits(view.index_word(row / kTileRows, column)).is_raw();
            for (int pair = 0; pair < kTileColumns / 2; ++pair) {
              for (int i = 0; i < 2; ++i) {
                const int64_t k = int64_t{kTileColumns} * column + 2 * pair + i;
                const uint16_t w = k < view.k ? scaled_bits(problem.w.at(0, row, k), view.base)
                                   : raw      ? 0
                                              : 0x3800;
                const float x = k < view.k ? value_of(problem.x.at(t, k)) : 0.0f;
                acc[pair % 2] = std::fma(value_of(w), x, acc[pair % 2]);
              }
            }
          };
          for (int c = begin + wave; c < checked; c += config.waves) add(c);
          for (int c = checked + wave; c < end; c += config.waves) add(c);
          sum += acc[0] + acc[1];
        }
        total += sum;
      }
      const float bias = problem.bias.empty() ? -0.0f : value_of(problem.bias[row]);
      out.push_back(finish(total, p.scale, bias));
    }
  }
  return out;
}

std::string name_of(const Problem& problem) {
  return join("m ", problem.x.m, ", n ", problem.w.n, ", k ", problem.w.k, ", x stride ",
              problem.x.stride, ", splits ", problem.splits);
}

void expect_integers_right(Problem& problem, Random& random) {
  fill_integers(problem, random);
  problem.pack();
  expect_same(run_fused(problem, problem.view(), random()), integer_product(problem), problem.w.n,
              name_of(problem));
}

void expect_model_right(Problem& problem, const std::string& what) {
  const std::vector<uint16_t> wanted = reference(problem, problem.view());
  expect_same(run_fused(problem, problem.view(), 1), wanted, problem.w.n,
              what + ", " + name_of(problem));
}

struct Shape {
  int64_t n, k;
};

TEST(every_token_count_multiplies_integers_exactly) {
  Random random(1);
  for (int m = 1; m <= kFusedMaxTokens; ++m) {
    // Rows: one, a whole pair, an odd tile row with a tail. Columns: one, a tail, waves with none,
    // one, two and three pairs, and a last tile of one column.
    for (const Shape shape : {Shape{1, 1}, Shape{32, 63}, Shape{33, 9 * 64 + 2}, Shape{16, 1538}}) {
      Problem problem(m, shape.n, shape.k, 2);
      expect_integers_right(problem, random);
    }
  }
}

TEST(every_number_of_columns_per_wave) {
  Random random(2);
  for (const int m : {1, 2, 11, 12}) {
    for (int columns = 1; columns <= 34; columns += m == 1 ? 3 : 11) {
      Problem problem(m, 5, 64 * columns);
      expect_integers_right(problem, random);
    }
  }
}

TEST(rows_of_x_may_start_anywhere) {
  Random random(3);
  for (const int m : {1, 2, 3, 9, 16}) {
    for (const int64_t gap : {0, 1, 3}) {
      for (const int64_t offset : {0, 1}) {
        Problem problem(m, 18, 131, gap, offset);
        expect_integers_right(problem, random);
      }
    }
  }
}

TEST(the_order_of_the_sum_is_the_promised_one) {
  Random random(4);
  for (int m = 1; m <= kFusedMaxTokens; ++m) {
    for (const Shape shape : {Shape{17, 700}, Shape{40, 1090}}) {
      Problem problem(m, shape.n, shape.k, m % 2);
      fill_model(problem, random, 1'000'000'000);
      problem.pack();
      expect_model_right(problem, "clean");
    }
  }
}

TEST(escapes_of_every_kind) {
  Random random(5);
  for (int m = 1; m <= kFusedMaxTokens; ++m) {
    for (const int rarity : {500, 25, 8}) {  // lists of one to raw tiles
      Problem problem(m, 33, 330, 1);
      fill_model(problem, random, rarity);
      problem.pack();
      expect_model_right(problem, join("one in ", rarity));
    }
  }
}

TEST(escapes_at_every_row_and_column) {
  for (const int m : {1, 12}) {
    for (int position = 0; position < kTileWeights; position += m == 1 ? 5 : 41) {
      Problem problem(m, 32, 64);
      for (int64_t row = 0; row < 32; ++row)
        for (int64_t k = 0; k < 64; ++k) problem.w.at(0, row, k) = exact_bits(1);
      const int half = position % 2;
      const int row = position / 64 + 16 * half, column = position % 64;
      problem.w.at(0, row, column) = 0;
      for (int t = 0; t < m; ++t)
        for (int64_t k = 0; k < 64; ++k) problem.x.at(t, k) = exact_bits(k == column ? 64 : 1);
      problem.pack();
      expect_same(run_fused(problem, problem.view(), position), integer_product(problem), 32,
                  join("escape at row ", row, ", column ", column));
    }
  }
}

TEST(special_values_reach_the_multiplier) {
  Random random(6);
  for (const int m : {1, 5, 16}) {
    Problem problem(m, 48, 200);
    fill_model(problem, random, 1'000'000'000);
    put_special_weights(problem);
    for (size_t i = 0; i < std::size(kSpecialWeights); ++i)
      problem.w.at(0, 4 * i + 1, 199 - i) = kSpecialWeights[i];  // in the tail
    problem.pack();
    expect_model_right(problem, "specials");
  }
}

TEST(every_base_is_scaled_back) {
  Random random(7);
  for (const int base : {kMinBase, 107, 112, 120, kMaxBase}) {
    Problem problem(3, 20, 150);
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
  Random random(8);
  for (const int m : {1, 2, 8, 13, 16}) {
    for (const int splits : {2, 3, 7}) {
      Problem problem(m, 35, 1700, 2);
      problem.splits = splits;
      fill_bias(problem, random);
      expect_integers_right(problem, random);
      fill_model(problem, random, 300);
      problem.pack();
      expect_model_right(problem, "split");
    }
  }
}

TEST(slices_are_views) {
  Random random(9);
  Problem whole(4, 64, 320);
  fill_integers(whole, random);
  whole.pack();
  Problem sliced(4, 32, 192);  // tile rows 1..2 of four and tile columns 2..4 of five
  const PackedView part = slice_into(sliced, whole, 1, 2);
  for (int t = 0; t < 4; ++t)
    for (int64_t k = 0; k < 192; ++k) sliced.x.at(t, k) = whole.x.at(t, k);
  expect_same(run_fused(sliced, part, 1), integer_product(sliced), 32, "slice");
}

TEST(hostile_index_words_never_read_outside_the_table) {
  Random random(10);
  for (const uint32_t word : kHostileIndexWords) {
    Problem problem(2, 32, 64);
    fill_integers(problem, random);
    problem.pack();
    problem.packed.index = {word, word};
    run_fused(problem, problem.view(), 1);  // the model reports any read outside
  }
}

TEST(the_order_of_lanes_decides_nothing) {
  Random random(11);
  Problem problem(7, 33, 700, 1);
  fill_model(problem, random, 50);
  problem.pack();
  const std::vector<uint16_t> first = run_fused(problem, problem.view(), 1);
  for (uint64_t seed = 2; seed < 6; ++seed)
    expect_same(run_fused(problem, problem.view(), seed), first, 33, join("seed ", seed));
}

TEST(problems_that_fill_the_machine) {
  Random random(12);
  for (int m = 1; m <= kFusedMaxTokens; ++m) {
    Problem problem(m, kMachineBlocks * kFusedBlockRows - 15, 1090, 2);
    expect_integers_right(problem, random);
  }
  Problem split(5, kMachineBlocks / 3 * kFusedBlockRows, 2048);
  split.splits = 3;
  expect_integers_right(split, random);
}

}  // namespace
}  // namespace nf12::test
