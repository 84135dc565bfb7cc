// The shipped wide kernels, in the host model or on a card (machine.hpp): against integers, where
// any order of a sum is exact, and for other values against the bound of any order. The model gets
// a part of the cases.
#define NF12_HOST_FRAGMENTS MmaFragments
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <tuple>

#include "csrc/format/escapes.hpp"
#include "csrc/gemm/wide/kernel.hpp"
#include "csrc/gemm/wide/launch.hpp"
#include "csrc/gemm/wide/once.hpp"
#include "csrc/unpack/launch.hpp"
#include "tests/host_model/gemm_problem.hpp"
#include "tests/host_model/maps.hpp"

namespace nf12::test {
namespace {

constexpr uint64_t kFlag = 0x123456789ABCDEF1;  // of every launch here, as of a graph's replays

struct Problem : GemmProblem {
  WideShape shape = {.tokens = 256};  // blocks 0: as many as there are tiles
  int64_t y_gap = 8;

  Problem(int64_t m, int64_t n, int64_t k, WideShape shape, int64_t x_gap = 0, int64_t x_offset = 0)
      : GemmProblem(m, n, k, x_gap, x_offset), shape(shape) {
    const int64_t rows = wide_row_blocks(n), tiles = (m + shape.tokens - 1) / shape.tokens * rows;
    if (shape.blocks == 0)
      this->shape.blocks = static_cast<int>(shape.once ? kOnceBlocks * ((tiles + 1) / 2) : tiles);
    if (shape.row_blocks == 0) this->shape.row_blocks = (rows + 1) / 2 * 2;
  }
};

WideShape whole(int tokens, int blocks = 0) { return {.tokens = tokens, .blocks = blocks}; }
WideShape once(int blocks = 0, int64_t row_blocks = 0) {
  return {.tokens = 256, .once = true, .blocks = blocks, .row_blocks = row_blocks};
}
// All tiles of a problem of m x n, or what is more than full rounds of blocks and one round.
WideShape shared(int tokens, int blocks, int64_t m, int64_t n) {
  const auto tiles = static_cast<int>((m + tokens - 1) / tokens * wide_row_blocks(n));
  return {.tokens = tokens,
          .blocks = blocks,
          .shared_tiles = tiles < 2 * blocks ? tiles : tiles % blocks + blocks};
}

std::string name_of(const Problem& problem) {
  const WideShape& shape = problem.shape;
  return join(shape.once ? "once, " : "", "m ", problem.x.m, " of ", shape.tokens, ", n ",
              problem.w.n, ", k ", problem.w.k, ", x stride ", problem.x.stride, ", y gap ",
              problem.y_gap, ", blocks ", shape.blocks, ", shared ", shape.shared_tiles,
              ", of a tile ", shape.sharers, ", row blocks ", shape.row_blocks);
}

// Memory that a launch shares among its blocks.
struct Workspace {
  GuardedBuffer<uint64_t> flags;
  GuardedBuffer<float> sums;
  GuardedBuffer<uint32_t> counts;
  GuardedBuffer<uint8_t> decoded;

  Workspace(const WideShape& shape, int64_t k)
      : flags(shape.shared_tiles > 0 ? wide_flag_bytes(shape) / 8 : 0),
        sums(shape.shared_tiles > 0 ? wide_sum_bytes(shape) / 4 : 0),
        counts(shape.once ? once_count_bytes(shape, k) / 4 : 0),
        decoded(shape.once ? shape.row_blocks * tile_columns(k) * kOnceBlockBytes : 0) {}
  void add_to(std::vector<arch::host::Buffer>& buffers) {
    const auto add = [&](auto& buffer, const char* name) {
      if (buffer.size() > 0)
        buffers.push_back({buffer.data(), buffer.size() * sizeof(buffer[0]), true, name});
    };
    add(flags, "flags");
    add(sums, "sums");
    add(counts, "counts");
    add(decoded, "decoded");
  }
};

void launch_wide(const Problem& problem, const GemmParams& gemm, Workspace& workspace,
                 std::vector<arch::host::Buffer> buffers) {
  const WideShape& shape = problem.shape;
  WideParams p = {};
  p.gemm = gemm;
  const Grid grid = wide_grid(shape, p);
  if (shape.shared_tiles > 0) {
    p.flags = workspace.flags.data();
    p.flag = kFlag;
    p.gemm.partials = workspace.sums.data();
  }
  const MapOfBuffer maps[] = {{offsetof(WideParams, encoded_map), encoded_layout(p.gemm.weight)},
                              {offsetof(WideParams, x_map), x_layout(p.gemm, shape.tokens)},
                              {offsetof(WideParams, y_map), y_layout(p.gemm)}};
  workspace.add_to(buffers);
  run_kernel({"nf12_gemm_wide_t" + std::to_string(shape.tokens), static_cast<int>(grid.x), 1,
              grid.threads / arch::kWave, 1, buffers, wide_shared_bytes(shape)},
             std::as_writable_bytes(std::span(&p, 1)), maps, [&] {
               with_tokens<kWideTokens>(shape.tokens, [&]<int t>(std::integral_constant<int, t>) {
                 wide_gemm<wide_config(t)>(p);
               });
             });
  for (int64_t i = 0; i < workspace.flags.size(); ++i)
    EXPECT(workspace.flags[i] != kFlag, name_of(problem), ": flag ", i, " stays up");
}

void launch_once(const Problem& problem, const GemmParams& all, Workspace& workspace,
                 const std::vector<arch::host::Buffer>& buffers) {
  const WideShape& shape = problem.shape;
  for (int64_t block = 0; block < wide_row_blocks(all.weight.n); block += shape.row_blocks) {
    OnceParams p = {};
    p.wide.gemm = all;
    GemmParams& gemm = p.wide.gemm;
    gemm.weight =
        slice_tile_rows(all.weight, block * kWideTileRows, shape.row_blocks * kWideTileRows);
    gemm.y = all.y + block * kWideRows;
    if (all.bias != nullptr) gemm.bias = all.bias + block * kWideRows;
    p.counts = workspace.counts.data();
    p.decoded = workspace.decoded.data();
    std::fill_n(p.counts, workspace.counts.size(), 0);
    const Grid grid = once_grid(shape, p);
    constexpr size_t kWide = offsetof(OnceParams, wide);
    const MapOfBuffer maps[] = {
        {kWide + offsetof(WideParams, x_map), x_layout(gemm, shape.tokens / kOnceBlocks)},
        {kWide + offsetof(WideParams, y_map), y_layout(gemm)}};
    std::vector<arch::host::Buffer> with_workspace = buffers;
    workspace.add_to(with_workspace);
    run_kernel({"nf12_gemm_once_t256", static_cast<int>(grid.x), 1, grid.threads / arch::kWave, 1,
                with_workspace, wide_shared_bytes(shape), kOnceBlocks},
               std::as_writable_bytes(std::span(&p, 1)), maps, [&] { once_gemm<256>(p); });
  }
}

std::vector<uint16_t> run_wide(Problem& problem, const PackedView& view, Workspace& workspace) {
  Outputs y(problem.x.m, view.n, problem.y_gap);
  const GemmParams p = params_of(problem, view, y.data(), y.stride);
  EXPECT(wide_takes(view) && view.n % 8 == 0, name_of(problem));
  std::vector<arch::host::Buffer> buffers = inputs_of(problem, p);
  buffers.push_back(y.buffer());
  try {
    if (problem.shape.once)
      launch_once(problem, p, workspace, buffers);
    else
      launch_wide(problem, p, workspace, buffers);
  } catch (const arch::host::Report& report) {
    EXPECT(false, name_of(problem), ": ", report.what());
  }
  return y.rows();
}
std::vector<uint16_t> run_wide(Problem& problem, const PackedView& view) {
  Workspace workspace(problem.shape, view.k);
  return run_wide(problem, view, workspace);
}

void expect_integers_right(Problem& problem, Random& random) {
  fill_integers(problem, random);
  problem.pack();
  expect_same(run_wide(problem, problem.view()), integer_product(problem), problem.w.n,
              name_of(problem));
}

TEST(every_edge_of_m) {
  Random random(1);
  Cases cases(22);
  for (const int64_t m : {1, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 300})
    for (const int tokens : kWideTokens) {
      if (!cases.takes_next()) continue;
      Problem problem(m, 200, 64 * (1 + m % 5), whole(tokens), m % 2 ? 8 : 0, m % 3 ? 8 : 0);
      expect_integers_right(problem, random);
    }
  for (const int64_t m : {1, 65, 256, 257, 300, 511, 513, 769}) {
    if (!cases.takes_next()) continue;
    Problem problem(m, 200, 64 * (1 + m % 6), once());
    expect_integers_right(problem, random);
  }
}

// Odd multiples of 8, short of a block of 64 or 128 and past it.
TEST(every_tail_of_n) {
  Random random(2);
  Cases cases(33, 2);
  for (const int64_t n : {8, 16, 24, 56, 64, 72, 120, 128, 136, 184, 192, 200, 248, 256, 264, 392})
    for (const WideShape& shape : {whole(128), whole(192), whole(256), once()}) {
      if (!cases.takes_next()) continue;
      Problem problem(131, n, 128, shape, 16, 8);
      fill_bias(problem, random);
      expect_integers_right(problem, random);
    }
}

// Blocks take several tiles each, the last ones fewer.
TEST(every_number_of_blocks) {
  Random random(3);
  Cases cases(24);
  for (int blocks = 1; blocks <= 6; ++blocks) {
    for (const int tokens : kWideTokens) {  // six tiles
      if (!cases.takes_next()) continue;
      Problem problem(2 * tokens - 3, 128 * 3 - 8, 64 * 3, whole(tokens, blocks));
      expect_integers_right(problem, random);
    }
    if (!cases.takes_next()) continue;
    Problem problem(3 * 256 - 3, 128 * 7 - 8, 64 * 6, once(2 * blocks));
    fill_bias(problem, random);
    expect_integers_right(problem, random);
  }
}

// Rows that are longer than what waves may decode ahead of the copies; clusters of unequal work.
TEST(decoding_keeps_near_the_copies) {
  Random random(17);
  const int groups = kOnceLead + 3;
  Problem problem(5, kWideRows * 5, kTileColumns * (kOnceGroup * groups - 1), once(4));
  expect_integers_right(problem, random);
}

// The rings go round several times.
TEST(long_rows) {
  Random random(4);
  Cases cases(4);
  const int64_t n = kMachineIsFast ? 264 : 136;
  for (const WideShape& shape : {whole(128, 2), whole(192, 2), whole(256, 2), once(2)}) {
    if (!cases.takes_next()) continue;
    Problem problem(140, n, 64 * (kMachineIsFast ? 37 : 7), shape);
    expect_integers_right(problem, random);
  }
}

TEST(shared_tiles_meet_in_memory) {
  Random random(5);
  Cases cases(45);
  for (const int tokens : kWideTokens)
    for (const int blocks : {2, 3, 5, 7, 12}) {
      for (const int64_t columns : {1, 4, 9}) {
        const int64_t m = tokens + 5, n = columns == 1 ? 128 * blocks + 8 : 200;
        if (columns * 4 < blocks && columns != 1) continue;  // more blocks than k-blocks
        if (!cases.takes_next()) continue;
        Problem problem(m, n, 64 * columns, shared(tokens, blocks, m, n));
        fill_bias(problem, random);
        expect_integers_right(problem, random);
      }
      if (!cases.takes_next()) continue;
      // All but full rounds.
      const int64_t n = 128 * (2 * blocks + 1) - 8;
      Problem problem(tokens - 9, n, 64 * 5, shared(tokens, blocks, tokens - 9, n));
      expect_integers_right(problem, random);
    }
}

// A tile of many blocks, which leave their sums last of all; a block that leaves some and has
// little to multiply after that, or enough for the flag to go up meanwhile.
TEST(sums_of_several_blocks) {
  Random random(18);
  for (const auto& [tiles, columns, blocks] : {std::tuple(1, 8, 5), {2, 4, 3}, {2, 9, 3}}) {
    Problem problem(100, 128 * tiles, 64 * columns, shared(128, blocks, 100, 128 * tiles));
    expect_integers_right(problem, random);
  }
  for (const auto& [columns, sharers] : {std::tuple(8, 2), {5, 4}}) {
    WideShape shape = shared(128, 2 * sharers, 100, 256);
    shape.sharers = sharers;
    Problem problem(100, 256, 64 * columns, shape);
    expect_integers_right(problem, random);
  }
}

// As a graph does: the same memory, the same word, whatever lies there at first.
TEST(flags_are_down_again) {
  Random random(6);
  Problem problem(256, 256, 64 * (kMachineIsFast ? 7 : 3), shared(256, 5, 256, 256));
  fill_integers(problem, random);
  problem.pack();
  Workspace workspace(problem.shape, problem.w.k);
  const std::vector<uint16_t> wanted = integer_product(problem);
  for (int turn = 0; turn < (kMachineIsFast ? 4 : 2); ++turn) {
    for (int64_t i = 0; i < workspace.sums.size(); ++i) workspace.sums[i] = NAN;
    expect_same(run_wide(problem, problem.view(), workspace), wanted, 256, join("turn ", turn));
  }
}

TEST(lists_of_every_length) {
  Random random(7);
  Cases cases(2, 1);
  for (const WideShape& shape : {whole(128), whole(192), whole(256), once()}) {
    if (!cases.takes_next()) continue;
    Problem problem(70, kTileRows * 11, kTileColumns * 6, shape);
    fill_integers(problem, random);
    put_lists_of_every_length(problem, random);
    problem.pack();
    expect_same(run_wide(problem, problem.view()), integer_product(problem), problem.w.n,
                name_of(problem));
  }
}

TEST(strided_rows) {
  Random random(8);
  Cases cases(12, 5);
  for (const WideShape& shape : {whole(128), whole(256), once()})
    for (const int64_t gap : {0, 8, 24, 4096}) {
      if (!cases.takes_next()) continue;
      Problem problem(133, 136, 192, shape, gap, 8);
      problem.y_gap = gap;
      expect_integers_right(problem, random);
    }
}

TEST(slices_are_views) {
  Random random(9);
  Cases cases(3, 1);
  for (const WideShape& shape : {whole(128), shared(128, 3, 140, 312), once()}) {
    if (!cases.takes_next()) continue;
    Problem part(140, 312, 192, shape);
    Problem all(1, 16 * 2 + 312 + 20, 64 + 192 + 64, whole(128));
    fill_integers(all, random);
    fill_integers(part, random);
    all.pack();
    const PackedView view = slice_into(part, all, 2, 1);
    expect_same(run_wide(part, view), integer_product(part), 312, name_of(part));
  }
}

// Rows in several launches through the same memory.
TEST(workspaces_that_hold_a_part) {
  Random random(10);
  Cases cases(2);
  for (const int64_t row_blocks : {2, 4}) {
    if (!cases.takes_next()) continue;
    Problem problem(kMachineIsFast ? 300 : 70, 128 * (kMachineIsFast ? 7 : 3) - 8,
                    64 * (kMachineIsFast ? 5 : 3), once(kMachineIsFast ? 6 : 4, row_blocks));
    fill_bias(problem, random);
    expect_integers_right(problem, random);
  }
}

TEST(values_of_a_model) {
  Random random(11);
  Cases cases(6, 1);
  const int64_t n = kMachineIsFast ? 280 : 136;
  for (const WideShape& shape :
       {whole(128), whole(192), whole(256), shared(256, 3, 100, n), once()})
    for (const int rarity : {500, 40, 25, 8}) {  // lists of one, of more than 32, raw tiles
      if (!cases.takes_next()) continue;
      Problem problem(100, n, 64 * (kMachineIsFast ? 9 : 5), shape, 24);
      fill_bias(problem, random);
      fill_model(problem, random, rarity);
      problem.pack();
      expect_within_bound(run_wide(problem, problem.view()), integer_product(problem), problem,
                          join("one in ", rarity, ", ", name_of(problem)));
    }
}

TEST(special_values_reach_the_multiplier) {
  Random random(12);
  Cases cases(5);
  for (const WideShape& shape : {whole(128), whole(256), once()})
    for (const bool infinite_x : {false, true}) {
      if (!cases.takes_next()) continue;
      Problem problem(80, 48, 256, shape);
      fill_model(problem, random, 1'000'000'000);
      put_specials_for_any_order(problem, random, infinite_x);
      problem.pack();
      expect_within_bound(run_wide(problem, problem.view()), integer_product(problem), problem,
                          name_of(problem));
    }
}

TEST(hostile_index_words_never_read_outside_the_table) {
  Random random(13);
  Cases cases(13);
  for (const WideShape& shape : {whole(128), whole(256), once()})
    for (const uint32_t word : kHostileIndexWords) {
      if (!cases.takes_next()) continue;
      Problem problem(70, 32, 128, shape);
      fill_integers(problem, random);
      problem.pack();
      problem.packed.index.assign(4, word);
      name_escapes_once(problem);
      run_wide(problem, problem.view());  // memcheck reports any read outside
    }
}

TEST(equal_launches_give_equal_bits) {
  Random random(14);
  Cases cases(3, 1);
  const int64_t n = kMachineIsFast ? 400 : 200;
  const int blocks = kMachineIsFast ? 7 : 3;
  for (const WideShape& shape : {whole(192), shared(256, blocks, 200, n), once()}) {
    if (!cases.takes_next()) continue;
    Problem problem(200, n, 64 * (kMachineIsFast ? 20 : 3), shape);
    fill_model(problem, random, 200);
    problem.pack();
    const std::vector<uint16_t> first = run_wide(problem, problem.view());
    for (int turn = 0; turn < (kMachineIsFast ? 3 : 1); ++turn)
      expect_same(run_wide(problem, problem.view()), first, n, name_of(problem));
  }
}

// More tiles than an H200 has multiprocessors, in the shapes that the launch would choose.
TEST(problems_that_fill_the_card) {
  Random random(15);
  Cases cases(3);
  const int kProcessors = kMachineIsFast ? 132 : 2;
  const int64_t n = 128 * (kMachineIsFast ? 141 : 3) - 8;
  for (const WideShape& shape :
       {whole(128, kProcessors), shared(128, kProcessors, 130, n), once(kProcessors)}) {
    if (!cases.takes_next()) continue;
    Problem problem(130, n, 128, shape);
    expect_integers_right(problem, random);
  }
}

}  // namespace
}  // namespace nf12::test
