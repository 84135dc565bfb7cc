// From a problem to a launch: what x's layout allows, how columns are split, and where 32 bits end.
#include "csrc/gemm/fused/launch.hpp"

#include "csrc/gemm/fused/instances/configs.hpp"
#include "tests/cpp/codec.hpp"
#include "tests/cpp/expect.hpp"

namespace nf12::test {
namespace {

const uint16_t* at(uintptr_t address) { return reinterpret_cast<const uint16_t*>(address); }

TEST(scalar_loads_need_whole_columns_of_aligned_rows) {
  EXPECT(scalar_columns_of(at(4096), 130, 3, 130) == 2, "two whole tile columns of 130");
  EXPECT(scalar_columns_of(at(4096), 63, 1, 63) == 0, "no whole tile column");
  EXPECT(scalar_columns_of(at(4098), 128, 1, 128) == 0, "x starts at an odd element");
  EXPECT(scalar_columns_of(at(4096), 129, 2, 128) == 0, "the second row starts at an odd element");
  EXPECT(scalar_columns_of(at(4096), 129, 1, 128) == 2, "one row: its stride means nothing");
  EXPECT(scalar_columns_of(at(4096), -128, 2, 128) == 0, "rows that run backwards");
}

TEST(scalar_loads_reach_as_far_as_their_32_bit_offset) {
  EXPECT(scalar_columns_of(at(4096), (int64_t{1} << 26) - 2, 16, 64) == 1, "just within");
  EXPECT(scalar_columns_of(at(4096), int64_t{1} << 26, 16, 64) == 0, "2^30 elements of 16 rows");
}

TEST(rows_of_a_pair_lie_within_32_bits) {
  PackedView w = weight_of(32, 64);
  EXPECT(fused_takes(w), "an ordinary weight");
  w.payload_stride_bytes = int64_t{1} << 32;
  EXPECT(!fused_takes(w), "tile rows 4 GiB apart");
  w.payload_stride_bytes = -kTileBytes;
  EXPECT(!fused_takes(w), "tile rows that run backwards");
  w = weight_of(32, 64);
  w.index_stride = int64_t{1} << 30;
  EXPECT(!fused_takes(w), "index rows 4 GiB apart");
}

TEST(splits_cover_every_column_once) {
  for (int tokens : {1, 8, 16}) {
    const GemmConfig config = fused_config(tokens);
    for (const int64_t k : {1, 64, 1024, 1025, 4096, 14336, 28672}) {
      for (int splits = 1; splits < 40; ++splits) {
        GemmParams p = {};
        p.weight = weight_of(100, k);
        p.m = tokens;
        const Grid grid = fused_grid(config, p, splits);
        EXPECT(grid.x == 4 && grid.y == p.splits, "grid ", grid.x, " x ", grid.y);
        const int64_t columns = tile_columns(k);
        EXPECT(p.splits <= splits, p.splits, " splits of ", splits);
        EXPECT(int64_t{p.splits} * p.columns_per_split >= columns, "columns left out at k ", k);
        EXPECT((p.splits - 1) * int64_t{p.columns_per_split} < columns, "an empty split at k ", k);
        EXPECT(workspace_floats(p) == (p.splits > 1 ? int64_t{p.splits} * tokens * 100 : 0),
               "workspace");
      }
    }
  }
}

TEST(only_small_n_is_split) {
  const GemmConfig config = fused_config(1);
  EXPECT(fused_splits(config, weight_of(4096, 4096), 128) == 1, "128 blocks need no split");
  EXPECT(fused_splits(config, weight_of(512, 4096), 128) == 4,
         "at most two pairs of columns a wave");
  EXPECT(fused_splits(config, weight_of(1024, 65536), 128) == 4, "32 blocks, 128 wanted");
  EXPECT(fused_splits(config, weight_of(16, 64), 128) == 1, "too few columns to share");
}

}  // namespace
}  // namespace nf12::test
