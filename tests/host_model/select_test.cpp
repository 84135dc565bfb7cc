// The choice of a gemm's path: its boundaries, what it never chooses, and its slices.
#include "csrc/gemm/select.hpp"

#include <string>

#include "tests/cpp/codec.hpp"
#include "tests/cpp/expect.hpp"

namespace nf12::test {
namespace {

// With every kernel compiled in.
GemmTraits complete(GemmTraits traits) {
  traits.fused = 0xFFFF;
  traits.matrix = 0xF;
  traits.combine = traits.unpack = true;
  return traits;
}
const GemmTraits kR9700 = complete(rdna4_traits(32));
const GemmTraits kH200 = [] {
  GemmTraits traits = complete(nvidia_traits(132));
  traits.fused = 0;
  traits.stream = true;
  traits.cluster = 0xF;
  traits.warpgroup = 0xFF;
  traits.wide = 7;
  traits.once = true;
  traits.clusters = {0, 132, 66, 39, 30, 22, 17, 15, 15};
  traits.shared_bytes = 232448;
  return traits;
}();
// As far as code for sm_90 goes that is not for that GPU alone.
const GemmTraits kSm90 = [] {
  GemmTraits traits = kH200;
  traits.warpgroup = traits.wide = 0;
  traits.once = false;
  return traits;
}();

std::string text(const GemmChoice& choice) {
  if (!choice) return join("refused: ", choice.refusal);
  const char* form = choice.warpgroup ? " warpgroup" : "";
  return join(name_of(choice.path), form, " t", choice.tokens, " s", choice.splits);
}
std::string selected(const GemmTraits& traits, int64_t m, int64_t n = 4096, int64_t k = 4096) {
  return text(select_gemm(traits, {weight_of(n, k), m, k}));
}
void expect_text(const std::string& got, const std::string& wanted) {
  EXPECT(got == wanted, got, " instead of ", wanted);
}

TEST(paths_change_where_the_traits_say) {
  expect_text(selected(kR9700, 15), "fused t15 s1");
  expect_text(selected(kR9700, 16), "matrix t16 s4");
  expect_text(selected(kR9700, kR9700.buffered_from - 1), "matrix t128 s1");
  expect_text(selected(kR9700, kR9700.buffered_from), "buffered t0 s0");
  expect_text(selected(kH200, 1), "stream t8 s1");
  expect_text(selected(kH200, 8), "stream t8 s1");
  expect_text(selected(kH200, 9), "stream t16 s1");
  expect_text(selected(kH200, 16), "stream t16 s1");
  expect_text(selected(kH200, 17), "stream t32 s1");
  expect_text(selected(kH200, 32), "stream t32 s1");
  expect_text(selected(kH200, 33), "cluster warpgroup t48 s5");
  expect_text(selected(kH200, 128), "cluster warpgroup t128 s2");
  expect_text(selected(kH200, 129), "cluster warpgroup t80 s2");
  expect_text(selected(kH200, 192), "cluster warpgroup t192 s2");
  expect_text(selected(kH200, 256), "cluster warpgroup t256 s2");
  expect_text(selected(kH200, 384), "wide t192 s2");
  expect_text(selected(kH200, 513), "wide t192 s2");
  expect_text(selected(kSm90, 17), "cluster t24 s2");
  expect_text(selected(kSm90, 25), "cluster t32 s2");
  expect_text(selected(kSm90, 64), "cluster t64 s5");
  const GemmChoice twice = select_gemm(kSm90, {weight_of(4096, 4096), 65, 4096});
  expect_text(text(twice), "cluster t48 s2");
  EXPECT(twice.passes == 2, twice.passes, " passes of 33 and 32 tokens");
  expect_text(selected(kSm90, kH200.buffered_from - 1), "cluster t64 s5");
  expect_text(selected(kSm90, kH200.buffered_from), "buffered t0 s0");
}

TEST(the_smallest_warpgroup_kernel_takes_all_tokens) {
  for (const int tokens : kWarpgroupTokens)
    for (const int m : {tokens - 15, tokens}) {
      const GemmChoice choice = warpgroup_choice(kH200, {weight_of(4096, 4096), m, 4096});
      EXPECT(choice.warpgroup && choice.passes == 1 && choice.splits == choice.shape.blocks, m,
             " tokens");
      EXPECT(choice.tokens == tokens || (tokens == 128 && m < 128), m, " tokens in ",
             choice.tokens);
    }
  GemmTraits traits = kH200;
  traits.warpgroup = 0b101001;  // 32, 80 and 128 tokens
  expect_text(selected(traits, 32, 8192, 8192), "cluster warpgroup t32 s2");
  expect_text(selected(traits, 33), "cluster warpgroup t80 s5");
  expect_text(selected(traits, 81), "cluster warpgroup t128 s2");
  traits.warpgroup = 1;
  expect_text(selected(traits, 33), "cluster t48 s2");
}

// The instructions of `stream` take it then, in one launch or two.
TEST(what_warpgroups_do_not_take) {
  const PackedView w = weight_of(4096, 4096);
  const auto with = [&](const GemmTraits& traits, int64_t m, int64_t x_stride) {
    return text(select_gemm(traits, {w, m, x_stride}));
  };
  expect_text(with(kH200, 17, 4088), "cluster t24 s2");
  expect_text(with(kH200, 17, 0), "cluster t24 s2");
  expect_text(with(kH200, 33, 4096), "cluster warpgroup t48 s5");
  expect_text(with(kH200, 33, 4088), "cluster t48 s2");  // rows of x overlap
  expect_text(with(kH200, 33, 0), "cluster t48 s2");
  expect_text(with(kH200, 128, 0), "cluster t64 s5");
  GemmTraits small = kH200;  // room for a block of 32 tokens, but not of 48
  small.shared_bytes = 150 * 1024;
  EXPECT(warpgroup_choice(small, {w, 17, 4096}).tokens == 32, "32 tokens fit");
  GemmTraits none = kH200;
  none.shared_bytes = 100 * 1024;
  EXPECT(!select_gemm(none, {w, 33, 4096}).warpgroup, "more shared memory than there is");
  for (const bool x_is_aligned : {true, false}) {
    const GemmProblem tail = {.weight = w, .m = 33, .x_stride = 4096, .x_is_aligned = x_is_aligned};
    EXPECT(select_gemm(kH200, tail).warpgroup == x_is_aligned, "rows of x off 16 bytes");
  }
  expect_text(selected(kH200, 17, 4096, 4104), selected(kSm90, 17, 4096, 4104));  // k off 64
}

// What was measured (H200, 2026-11-30): at 20 tokens 9.8 us to 10.6, 5.1 to 5.7, 4.4 to 5.9
// and 10.4 to 9.8, 29 to 25; at 32 tokens 10.3 to 10.6 and 33 to 28.
TEST(the_faster_one_of_stream_and_warpgroups) {
  expect_text(selected(kH200, 20), "stream t32 s1");
  expect_text(selected(kH200, 20, 4864, 896), "stream t32 s1");
  expect_text(selected(kH200, 20, 2048, 2048), "stream t32 s1");
  expect_text(selected(kH200, 20, 8192, 2048), "cluster warpgroup t32 s2");
  expect_text(selected(kH200, 20, 14336), "cluster warpgroup t32 s2");
  expect_text(selected(kH200, 32, 8192, 8192), "cluster warpgroup t32 s2");
}

// What was measured (H200, 2026-11-30): at 128 tokens 31 us to 35 and 87 to 84, at 192 tokens 20 to
// 23 and 111 to 88, at 256 tokens 68 to 60.
TEST(the_faster_one_of_warpgroups_and_wide) {
  expect_text(selected(kH200, 128, 4096, 11008), "cluster warpgroup t128 s2");
  expect_text(selected(kH200, 128, 5120, 25600), "wide t128 s2");
  expect_text(selected(kH200, 192), "cluster warpgroup t192 s2");
  expect_text(selected(kH200, 192, 28672, 4096), "wide t192 s2");
  expect_text(selected(kH200, 256, 8192, 8192), "wide t256 s2");
  expect_text(selected(kH200, 96, 5120, 25600), "cluster warpgroup t96 s5");
  expect_text(selected(kH200, 160, 28672), "wide t192 s2");
  expect_text(selected(kH200, 384, 1024), "cluster warpgroup t128 s2");  // 14 us to 19
  // 17 us to 19: stretches of 13 k-blocks, whose owners wait for sums.
  expect_text(selected(kH200, 144, 8960, 1536), "cluster warpgroup t192 s2");
}

// What was measured, one form to the one that takes all tokens at once: 14.8 us to 17.4, 8.8 to
// 9.6, 9.9 to 10.6, 20.0 to 24.7 (wide 22.0).
TEST(several_tiles_of_fewer_tokens) {
  expect_text(selected(kH200, 160, 3584, 3584), "cluster warpgroup t80 s4");
  expect_text(selected(kH200, 192, 4864, 896), "cluster warpgroup t96 s2");
  expect_text(selected(kH200, 160, 1024), "cluster warpgroup t80 s5");
  expect_text(selected(kH200, 208, 8960, 1536), "cluster warpgroup t80 s1");
  for (int m = 17; m <= 512; ++m)
    for (const int64_t n : {1024, 4096, 28672}) {
      const GemmChoice choice = warpgroup_choice(kH200, {weight_of(n, 4096), m, 4096});
      WarpgroupParams p = {};
      p.cluster.gemm.weight = weight_of(n, 4096);
      p.cluster.gemm.m = m;
      const Grid grid = warpgroup_grid(warpgroup_config(choice.tokens), p, choice.shape);
      EXPECT(p.tokens % 16 == 0 && p.tokens <= choice.tokens && grid.y * p.tokens >= m &&
                 (grid.y - 1) * p.tokens < m,
             m, " tokens as ", grid.y, " x ", p.tokens);
    }
}

// What a benchmark of every form found fastest (H200, 2026-11-30), or within some hundredths of it.
TEST(wide_tiles_as_they_were_measured) {
  const auto wide_at_128 = [](int64_t n, int64_t k) {
    return text(wide_choice(kH200, {weight_of(n, k), 128, k}));
  };
  expect_text(wide_at_128(4096, 4096), "wide t128 s2");
  expect_text(wide_at_128(5120, 25600), "wide t128 s2");
  const auto expect_sharers = [](int64_t m, int64_t n, int64_t k, int wanted) {
    const WideShape shape = select_gemm(kH200, {weight_of(n, k), m, k}).wide;
    EXPECT(shape.sharers == wanted && shape.shared_tiles > 0, m, " tokens, ", n, " x ", k, ": ",
           shape.sharers, " blocks a tile, ", shape.shared_tiles, " shared");
  };
  expect_sharers(256, 8192, 8192, 2);
  expect_sharers(256, 5120, 25600, 3);
  expect_sharers(256, 4096, 11008, 4);
  expect_sharers(256, 28672, 4096, 0);
  expect_sharers(512, 4096, 4096, 2);
  expect_sharers(1024, 5120, 25600, 0);
  expect_text(selected(kH200, 256, 14336), "wide t256 s1");
  expect_text(selected(kH200, 512, 8192, 8192), "wide t256 s1");
  expect_text(selected(kH200, 512, 4864, 896), "wide t192 s1");
  const auto is_once = [](int64_t m, int64_t n, int64_t k) {
    return select_gemm(kH200, {weight_of(n, k), m, k}).wide.once;
  };
  EXPECT(!is_once(512, 8192, 8192) && !is_once(1024, 4096, 4096), "too few tokens to decode once");
  EXPECT(!is_once(1024, 5120, 25600), "tiles that divide badly");
  EXPECT(is_once(2048, 8192, 8192) && is_once(4096, 28672, 4096), "many tokens");
  EXPECT(is_once(2048, 16888, 2048), "which tests/test_gpu_device.py counts on");
  GemmTraits alone = kH200;  // no clusters
  alone.clusters[2] = 0;
  EXPECT(!select_gemm(alone, {weight_of(8192, 8192), 4096, 8192}).wide.once, "needs clusters");
}

TEST(what_wide_does_not_take) {
  const PackedView w = weight_of(4096, 4096);
  const auto with = [&](auto change) {
    GemmProblem problem = {.weight = w, .m = 300, .x_stride = 4096};
    change(problem);
    return text(select_gemm(kH200, problem));
  };
  expect_text(with([](GemmProblem& p) { p.y_is_aligned = false; }), "cluster warpgroup t80 s2");
  expect_text(with([](GemmProblem& p) { p.y_is_aligned = false, p.m = 513; }), "buffered t0 s0");
  expect_text(with([](GemmProblem& p) { p.x_is_aligned = false; }), "buffered t0 s0");
  expect_text(with([](GemmProblem& p) { p.x_stride = 0; }), "buffered t0 s0");
  expect_text(selected(kH200, 300, 4096, 4100), "buffered t0 s0");
  expect_text(selected(kH200, 100, 4096, 4100), "matrix t128 s16");
  expect_text(selected(kH200, 384, 4104), "wide t192 s2");
  for (const int64_t n : {4097, 4100, 4103}) {
    expect_text(selected(kH200, 384, n), "cluster warpgroup t192 s2");
    expect_text(selected(kH200, 513, n), "buffered t0 s0");
    expect_text(text(wide_choice(kH200, {weight_of(n, 4096), 300, 4096})),
                "refused: needs out_features a multiple of 8");
    EXPECT(select_gemm(kH200, {weight_of(n, 4096), 128, 4096}).warpgroup, "n ", n);
  }
  PackedView apart = w;
  apart.payload_stride_bytes = int64_t{1} << 40;
  expect_text(text(wide_choice(kH200, {apart, 300, 4096})),
              "refused: cannot reach tile rows this far apart");
  expect_text(text(wide_choice(kH200, {w, int64_t{1} << 31, 4096})),
              "refused: has no grid for so many outputs");
  expect_text(text(wide_choice(kR9700, {w, 300, 4096})), "refused: is not built for this GPU");
}

// What the streaming kernel does not take goes to the matrix kernel.
TEST(streaming_takes_whole_tiles_and_aligned_tokens) {
  expect_text(selected(kH200, 1, 4096, 64), "matrix t16 s1");     // one tile column
  expect_text(selected(kH200, 1, 4096, 4100), "matrix t16 s16");  // a tail
  PackedView slice = weight_of(4096, 4096);
  slice.payload_stride_bytes *= 2;
  expect_text(text(select_gemm(kH200, {slice, 1, 4096})), "matrix t16 s16");
  const PackedView whole = weight_of(4096, 4096);
  expect_text(
      text(select_gemm(kH200, {.weight = whole, .m = 1, .x_stride = 4096, .x_is_aligned = false})),
      "matrix t16 s16");
  GemmTraits small = kH200;  // too little shared memory, as sm_80 has
  small.stream = false;
  expect_text(selected(small, 1), "matrix t16 s16");
  expect_text(text(stream_choice(kR9700, {whole, 1, 4096})), "refused: is not built for this GPU");
}

// There two launches and torch's own matmul beat one launch of the matrix kernel, unless its rows
// would not be aligned.
TEST(tails_of_k_are_buffered_where_the_matrix_kernel_is_slower) {
  const int64_t from = kH200.buffered_instead_from;
  for (const GemmTraits& traits : {kH200, kSm90}) {
    expect_text(selected(traits, from - 1, 4096, 4104), "matrix t64 s16");
    expect_text(selected(traits, from, 4096, 4104), "buffered t0 s0");
    expect_text(selected(traits, traits.buffered_from - 1, 4096, 4104), "buffered t0 s0");
    expect_text(selected(traits, from, 4096, 4100), "matrix t128 s16");
    expect_text(selected(traits, traits.buffered_from, 4096, 4100), "buffered t0 s0");
  }
  const PackedView w = weight_of(4096, 4104);
  const auto with = [&](auto change) {
    GemmProblem problem = {.weight = w, .m = from, .x_stride = 4104};
    change(problem);
    return text(select_gemm(kH200, problem));
  };
  expect_text(with([](GemmProblem& p) { p.x_is_aligned = false; }), "matrix t128 s16");
  expect_text(with([](GemmProblem& p) { p.y_is_aligned = false; }), "matrix t128 s16");
  expect_text(with([](GemmProblem& p) { p.bias = true; }), "buffered t0 s0");
  GemmTraits traits = kH200;  // no kernels to unpack with
  traits.unpack = false;
  expect_text(selected(traits, from, 4096, 4104), "matrix t128 s16");
  expect_text(selected(kR9700, 65, 4096, 4104), "matrix t128 s4");
}

TEST(blocks_of_the_stream_share_out_the_rows) {
  const auto shape_of = [](int64_t rows, int64_t columns, int tokens = 8) {
    return stream_shape(stream_config(tokens), weight_of(16 * rows, 64 * columns), 132);
  };
  const auto expect_shape = [](const StreamShape& shape, int64_t blocks, bool shares_rows) {
    EXPECT(shape.blocks == blocks && shape.shares_rows == shares_rows, shape.blocks, " blocks, ",
           shape.shares_rows ? "shared" : "whole", " rows");
  };
  expect_shape(shape_of(256, 64), 132, false);  // two rows or one a block
  expect_shape(shape_of(64, 16), 64, false);    // no block without a row
  expect_shape(shape_of(64, 64), 64, false);    // half of them idle, for 32 tiles
  expect_shape(shape_of(96, 140), 132, true);   // a quarter, for 38
  expect_shape(shape_of(320, 400), 132, true);  // three rows or two: 1,200 tiles instead of 970
  expect_shape(shape_of(1, 8192), 132, true);
  expect_shape(shape_of(1, 100), 100, true);  // no block without a tile
  for (const int tokens : kStreamTokens)
    for (int64_t rows = 1; rows < 10'000; ++rows) {
      const StreamConfig config = stream_config(tokens);
      const StreamShape shape = shape_of(rows, 200, tokens);
      const int64_t units = rows * (shape.shares_rows ? 200 : 1);
      const int64_t longest = (units + shape.blocks - 1) / shape.blocks;
      EXPECT(longest * (shape.shares_rows ? 1 : 200) <= 200 * config.waves,
             "a row a wave at most, of ", rows);
    }
}

TEST(a_block_is_as_small_as_the_tokens_allow) {
  for (const int64_t tokens : kMatrixTokens) {
    const GemmChoice exact = matrix_choice(kR9700, {weight_of(64, 64), tokens, 64});
    EXPECT(exact.tokens == tokens, tokens, " tokens in blocks of ", exact.tokens);
    const GemmChoice more = matrix_choice(kR9700, {weight_of(64, 64), tokens + 1, 64});
    EXPECT(more.tokens == std::min<int64_t>(2 * tokens, 128), tokens + 1, " in ", more.tokens);
  }
}

TEST(a_kernel_that_is_not_there_is_not_chosen) {
  GemmTraits traits = kR9700;
  traits.fused &= ~(1u << 7);
  expect_text(selected(traits, 7), "fused t7 s1");
  expect_text(selected(traits, 8), "matrix t16 s4");
  traits.matrix = 0b1001;
  expect_text(selected(traits, 17), "matrix t128 s4");
  traits.combine = false;
  expect_text(selected(traits, 16), "matrix t16 s1");
  traits.matrix = 0;
  expect_text(selected(traits, 9), "fused t9 s1");
  expect_text(selected(traits, 16), "fused t16 s1");
  expect_text(selected(traits, 17), "buffered t0 s0");
  traits.unpack = false;
  expect_text(selected(traits, 17), "refused: is not built for this GPU");
}

TEST(what_a_path_cannot_take_goes_to_another) {
  const PackedView w = weight_of(64, 64);
  const int64_t far = int64_t{1} << 31;
  expect_text(text(select_gemm(kR9700, {w, 16, far})), "fused t16 s1");
  expect_text(text(select_gemm(kR9700, {w, 17, far})), "buffered t0 s0");
  PackedView apart = w;
  apart.payload_stride_bytes = int64_t{1} << 32;
  expect_text(text(select_gemm(kR9700, {apart, 1, 64})), "matrix t16 s1");
  expect_text(text(select_gemm(kR9700, {apart, 1, far})), "buffered t0 s0");
  expect_text(text(fused_choice(kR9700, {w, 17, 64})), "refused: takes at most 16 tokens");
}

TEST(a_bias_is_added_before_the_only_rounding) {
  const GemmChoice aligned = select_gemm(kR9700, {weight_of(40, 64), 2000, 64, true});
  expect_text(text(aligned), "buffered t0 s0");
  const GemmChoice odd = select_gemm(kR9700, {weight_of(37, 64), 2000, 64, true});
  expect_text(text(odd), "matrix t128 s1");
  const GemmChoice odd_columns = select_gemm(kR9700, {weight_of(40, 60), 2000, 60, true});
  expect_text(text(odd_columns), "matrix t128 s1");
  expect_text(text(select_gemm(kR9700, {weight_of(37, 60), 2000, 60, false})), "buffered t0 s0");
}

TEST(grids_stay_within_what_a_launch_can_count) {
  expect_text(selected(kR9700, 1, INT32_MAX, 64), "matrix t16 s1");
  expect_text(selected(kR9700, 64, INT32_MAX, 64), "matrix t64 s1");
  expect_text(selected(kR9700, 128, INT32_MAX, 64), "buffered t0 s0");
  const int64_t many = int64_t{1} << 32;
  EXPECT(!matrix_choice(kR9700, {weight_of(16, 64), many, 64}), "tokens past 31 bits");
}

TEST(slices_are_even_and_bounded) {
  for (const int64_t n : {1, 16, 17, 4096, 28672, 128256}) {
    for (const int64_t k : {1, 64, 4096, 28672, 1 << 24}) {
      const int64_t rows = tile_rows(n), slice = slice_tile_rows_of(n, k);
      EXPECT(slice >= 1 && slice <= rows, slice, " tile rows of ", rows);
      EXPECT(slice == 1 || slice * kTileRows * k * 2 <= kSliceBytes, "n ", n, ", k ", k);
      const int64_t slices = (rows + slice - 1) / slice;
      EXPECT(slices * slice - rows < slices, "a last slice much smaller: n ", n, ", k ", k);
    }
  }
  EXPECT(slice_tile_rows_of(4096, 4096) == 256, "32 MiB are one slice");
  EXPECT(slice_tile_rows_of(14336, 4096) == 448, "112 MiB are two");
}

}  // namespace
}  // namespace nf12::test
