// How a gemm runs on a GPU: which path, in which blocks. The one decision; pure, so that it can be
// tested and printed without a GPU.
//
//   fused      a kernel per token count, for few tokens: each weight decoded once, no matrix unit
//   stream     matrix instructions for few tokens, one block a multiprocessor (NVIDIA)
//   cluster    clusters of blocks that split k (NVIDIA): warpgroups for up to 256 tokens a tile on
//              sm_90a, the instructions of `stream` elsewhere, up to 64 tokens a launch
//   wide       matrix instructions on shared memory, 128 to 256 tokens a tile (sm_90a)
//   matrix     matrix instructions, 16 to 128 tokens a block
//   buffered   the weight unpacked slice by slice, each multiplied by torch's own matmul
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "csrc/gemm/cluster/launch.hpp"
#include "csrc/gemm/fused/instances/configs.hpp"
#include "csrc/gemm/fused/launch.hpp"
#include "csrc/gemm/matrix/instances/configs.hpp"
#include "csrc/gemm/matrix/launch.hpp"
#include "csrc/gemm/stream/instances/configs.hpp"
#include "csrc/gemm/stream/launch.hpp"
#include "csrc/gemm/warpgroup/launch.hpp"
#include "csrc/gemm/wide/launch.hpp"

namespace nf12 {

enum class GemmPath : int { kFused, kStream, kCluster, kWide, kMatrix, kBuffered };
inline constexpr int kGemmPaths = 6;
inline constexpr const char* kGemmPathNames[kGemmPaths] = {"fused", "stream", "cluster",
                                                           "wide",  "matrix", "buffered"};
constexpr const char* name_of(GemmPath path) { return kGemmPathNames[static_cast<int>(path)]; }

// Of a row of the grid: AMD's launches count threads, not blocks, by 32 bits.
inline constexpr int64_t kMostThreads = UINT32_MAX;
inline constexpr int64_t kMostGridRows = 65535;  // NVIDIA's

inline constexpr int kMatrixTokens[] = {16, 32, 64, 128};

// What the decision looks at of a GPU.
struct GemmTraits {
  int wanted_blocks;      // that fill it
  int processors;         // blocks of the stream path, which has one for each
  int64_t fused_below;    // fewer tokens are fused
  int64_t stream_below;   // of the others, fewer are streamed, and more where a model says so
  int64_t cluster_below;  // of the others, fewer go to clusters
  // As many or more are wide where it takes them, or go to warpgroups if a model of either's time
  // says so.
  int64_t wide_from;
  int64_t buffered_from;  // as many or more are buffered
  // Of those that their path does not take, as many or more are buffered rather than left to the
  // matrix kernel, where torch's own matmul has rows at multiples of 16 bytes.
  int64_t buffered_instead_from;
  // What the code objects hold and the GPU can run: bit t - 1 for t tokens, bit i for
  // kMatrixTokens[i], kClusterTokens[i], kWarpgroupTokens[i] and kWideTokens[i].
  uint32_t fused = 0, matrix = 0, cluster = 0, warpgroup = 0, wide = 0;
  bool stream = false, once = false;     // once: the wide form that decodes every weight once
  bool combine = false, unpack = false;  // a split launch needs the one, buffered the other
  ClusterCounts clusters = {};
  int shared_bytes = 0;  // that a launch may give a block
};

// RDNA4. Under 16 tokens a matrix instruction would be padded; 16 fill it exactly.
//   buffered: unpacking moves 4 bytes a weight more than the matrix kernel does, 6.6 ps at 610
//   GB/s, and a token costs 10.5 fs a weight at 191 TFLOP/s. If our kernel reaches half of that
//   peak and the vendor's four fifths, the two meet at 840 tokens. A model; no card has measured it
//   here. blocks: two a compute unit, four a work-group processor, which is what the driver counts.
//   At one token more would not fit (fused_config), and two of 8 waves keep 12 KiB of weights in
//   flight a wave's SIMD.
constexpr GemmTraits rdna4_traits(int processors) {
  return {.wanted_blocks = 4 * processors,
          .processors = processors,
          .fused_below = 16,
          .stream_below = 0,
          .cluster_below = 0,
          .wide_from = INT64_MAX,
          .buffered_from = 1024,
          .buffered_instead_from = 1024};
}

// NVIDIA: no fused kernels in this version. docs/performance.md has what each path takes; of the
// others (H200, 2026-11-29, geomeans of the ratio to dense over eight shapes, cold): buffered 0.40
// at 256 tokens, 0.53 at 512, 0.65 at 1024, 0.88 at 4096; cluster with the instructions of `stream`
// 1.04 at 32, 0.82 at 64, 0.43 at 128.
// Where wide is not to be had: two launches of the cluster kernel take less than one of the matrix
// kernel (m = 128, k x n 4096 x 14336: 72 us and 140), three about as long as the buffered path,
// whose unpacking costs the same whatever m is. The matrix kernel takes 65 tokens as it takes 128:
// unpacking (67 us there, 57 since) and torch.mm (33) are the faster way from there on for what the
// others do not take.
constexpr GemmTraits nvidia_traits(int processors) {
  return {.wanted_blocks = 4 * processors,
          .processors = processors,
          .fused_below = 0,
          .stream_below = 17,
          .cluster_below = 193,
          .wide_from = 97,
          .buffered_from = 193,
          .buffered_instead_from = 65};
}

// y [m, n] = x W^T as far as its layout matters.
struct GemmProblem {
  const PackedView& weight;
  int64_t m;
  int64_t x_stride;  // elements
  bool bias = false;
  bool x_is_aligned = true;  // rows of x start at multiples of 16 bytes
  bool y_is_aligned = true;  // and those of y
};

// A path with its blocks, or why the path cannot take a problem.
struct GemmChoice {
  GemmPath path;
  int tokens = 0;  // of a block: which compiled kernel; buffered: none
  // Of k, asked of fused_grid and matrix_grid; stream and wide: 2 where blocks share rows or tiles.
  int splits = 0;
  const char* refusal = nullptr;
  bool warpgroup = false;   // the form of the cluster path
  int64_t passes = 1;       // cluster: launches, which share out the tokens evenly
  ClusterShape shape = {};  // of each
  StreamShape stream = {};
  WideShape wide = {};
  int64_t ns = 0;  // stream past 16 tokens, warpgroup: that a model says it takes

  constexpr explicit operator bool() const { return refusal == nullptr; }
};

constexpr GemmChoice fused_choice(const GemmTraits& traits, const GemmProblem& problem) {
  GemmChoice choice = {.path = GemmPath::kFused};
  if (traits.fused == 0) {
    choice.refusal = "is not built for this GPU";
  } else if (problem.m > kFusedMaxTokens) {
    choice.refusal = "takes at most 16 tokens";
  } else if ((traits.fused >> (problem.m - 1) & 1) == 0) {
    choice.refusal = "is not built for this token count";
  } else if (!fused_takes(problem.weight)) {
    choice.refusal = "cannot reach tile rows this far apart";
  } else if (problem.weight.n * fused_config(1).waves > kMostThreads) {
    choice.refusal = "has no grid for so many outputs";
  } else {
    choice.tokens = static_cast<int>(problem.m);
    const GemmConfig config = fused_config(choice.tokens);
    choice.splits = traits.combine ? fused_splits(config, problem.weight, traits.wanted_blocks) : 1;
  }
  return choice;
}

// The smallest of the compiled forms, those of `there`, that takes so many tokens; 0: none does.
template <size_t count>
constexpr int smallest_form(const int (&tokens)[count], uint32_t there, int64_t least) {
  for (size_t i = 0; i < count; ++i)  // ascending
    if ((there >> i & 1) != 0 && tokens[i] >= least) return tokens[i];
  return 0;
}

constexpr GemmChoice stream_choice(const GemmTraits& traits, const GemmProblem& problem) {
  GemmChoice choice = {.path = GemmPath::kStream};
  if (!traits.stream)
    choice.refusal = "is not built for this GPU";
  else if (problem.m > kStreamMostTokens)
    choice.refusal = "takes at most 32 tokens";
  else if (!problem.x_is_aligned)
    choice.refusal = "needs rows of x at multiples of 16 bytes";
  else if (!stream_takes(problem.weight))
    choice.refusal =
        "needs in_features a multiple of 64, 128 or more, and a weight that is no slice";
  if (!choice) return choice;
  choice.tokens = smallest_form(kStreamTokens, UINT32_MAX, problem.m);
  choice.stream = stream_shape(stream_config(choice.tokens), problem.weight, traits.processors);
  choice.splits = choice.stream.shares_rows ? 2 : 1;
  choice.ns = stream_ns(choice.stream, problem.weight, problem.m);
  return choice;
}

// The form of the cluster path that is faster where it is to be had; no tokens if it is not. Rows
// of the grid share out the tokens: as few as there can be, or up to two more of a smaller form,
// which fills more multiprocessors (3584 x 3584, 160 tokens: 1 x 192 17.4 us, 2 x 80 14.8; H200,
// 2026-11-30). Up to 64 tokens one is the fastest.
constexpr GemmChoice warpgroup_choice(const GemmTraits& traits, const GemmProblem& problem) {
  GemmChoice best = {.path = GemmPath::kCluster, .warpgroup = true};
  if (!problem.x_is_aligned || !warpgroup_takes(problem.weight, problem.m, problem.x_stride))
    return best;
  const int64_t fewest = (problem.m + kWarpgroupMostTokens - 1) / kWarpgroupMostTokens;
  const int64_t most = std::min(problem.m > 64 ? fewest + 2 : fewest, kMostGridRows);
  for (int64_t wanted = fewest; wanted <= most; ++wanted) {
    const int tokens =
        smallest_form(kWarpgroupTokens, traits.warpgroup, (problem.m + wanted - 1) / wanted);
    if (tokens == 0) continue;
    const WarpgroupConfig config = warpgroup_config(tokens);
    const int64_t tiles = (problem.m + tokens - 1) / tokens;
    const ClusterShape shape =
        warpgroup_shape(config, problem.weight, tiles, traits.clusters, traits.shared_bytes);
    if (shape.rows == 0) continue;
    const int64_t ns =
        warpgroup_ns(config, problem.weight, tiles, traits.clusters[shape.blocks], shape);
    if (best.tokens > 0 && ns >= best.ns) continue;
    best.tokens = tokens;
    best.shape = shape;
    best.splits = shape.blocks;
    best.ns = ns;
  }
  return best;
}

// Past the tokens that a kernel takes: several launches one after the other, each with as many.
constexpr GemmChoice cluster_choice(const GemmTraits& traits, const GemmProblem& problem) {
  GemmChoice choice = warpgroup_choice(traits, problem);
  if (choice.tokens > 0) return choice;
  choice = {.path = GemmPath::kCluster};
  choice.passes = (problem.m + kClusterMostTokens - 1) / kClusterMostTokens;
  const int64_t tokens = (problem.m + choice.passes - 1) / choice.passes;
  choice.tokens = smallest_form(kClusterTokens, traits.cluster, tokens);
  if (choice.tokens == 0)
    choice.refusal = "is not built for this GPU";
  else if (!problem.x_is_aligned)
    choice.refusal = "needs rows of x at multiples of 16 bytes";
  else if (!cluster_takes(problem.weight))
    choice.refusal = "needs in_features a multiple of 64";
  if (!choice) return choice;
  choice.shape = cluster_shape(cluster_config(choice.tokens), problem.weight, tokens,
                               traits.clusters, traits.shared_bytes);
  choice.splits = choice.shape.blocks;
  if (choice.shape.rows == 0) choice.refusal = "needs more shared memory than this GPU has";
  return choice;
}

constexpr GemmChoice wide_choice(const GemmTraits& traits, const GemmProblem& problem) {
  GemmChoice choice = {.path = GemmPath::kWide};
  const PackedView& weight = problem.weight;
  if (traits.wide == 0)
    choice.refusal = "is not built for this GPU";
  else if (!problem.x_is_aligned || !problem.y_is_aligned)
    choice.refusal = "needs rows of x and of the result at multiples of 16 bytes";
  else if (problem.m > 1 && problem.x_stride < weight.k)
    choice.refusal = "needs rows of x that do not overlap";
  else if (weight.k % kTileColumns != 0)
    choice.refusal = "needs in_features a multiple of 64";
  else if (weight.n % 8 != 0)
    choice.refusal = "needs out_features a multiple of 8";
  else if (!wide_takes(weight))
    choice.refusal = "cannot reach tile rows this far apart";
  else if (problem.m > INT32_MAX / 2)
    choice.refusal = "has no grid for so many outputs";
  if (!choice) return choice;
  const WideCard card = {traits.processors, traits.clusters[kOnceBlocks], traits.wide, traits.once};
  choice.wide = wide_shape(card, weight.n, weight.k, problem.m);
  choice.tokens = choice.wide.tokens;
  choice.splits = choice.wide.shared_tiles > 0 ? 2 : 1;
  if (choice.tokens == 0) choice.refusal = "has no grid for so many outputs";
  return choice;
}

// The smallest block that takes all tokens; the largest there is, several times, past that.
constexpr GemmChoice matrix_choice(const GemmTraits& traits, const GemmProblem& problem) {
  GemmChoice choice = {.path = GemmPath::kMatrix, .refusal = "is not built for this GPU"};
  for (int i = 0; i < 4 && choice.tokens < problem.m; ++i) {
    if ((traits.matrix >> i & 1) == 0) continue;
    choice.refusal = nullptr;
    choice.tokens = kMatrixTokens[i];
  }
  if (!choice) return choice;
  const MatrixConfig config = matrix_config(choice.tokens);
  GemmParams p = {};
  p.weight = problem.weight;
  p.m = static_cast<int32_t>(problem.m);
  const int64_t threads = matrix_grid(config, p, 1).x * (32 * config.waves);
  if (!matrix_takes(config, problem.x_stride))
    choice.refusal = "cannot reach rows of x this far apart";
  else if (problem.m > INT32_MAX || threads > kMostThreads)
    choice.refusal = "has no grid for so many outputs";
  else
    choice.splits = traits.combine ? matrix_splits(config, p, traits.wanted_blocks) : 1;
  return choice;
}

// torch's matmul rounds the product before it adds a bias where rows of the result are not aligned
// (seen with n = 37 and 4097 on an H200, torch 2.11), and where rows of x are not: those are copied
// first, unless copies would not be aligned either.
constexpr GemmChoice buffered_choice(const GemmTraits& traits, const GemmProblem& problem) {
  GemmChoice choice = {.path = GemmPath::kBuffered};
  if (!traits.unpack)
    choice.refusal = "is not built for this GPU";
  else if (problem.bias && (problem.weight.n % 8 != 0 || problem.weight.k % 8 != 0))
    choice.refusal =
        "rounds twice with a bias unless in_features and out_features are multiples of 8";
  return choice;
}

constexpr GemmChoice choice_of(GemmPath path, const GemmTraits& traits,
                               const GemmProblem& problem) {
  return path == GemmPath::kFused     ? fused_choice(traits, problem)
         : path == GemmPath::kStream  ? stream_choice(traits, problem)
         : path == GemmPath::kCluster ? cluster_choice(traits, problem)
         : path == GemmPath::kWide    ? wide_choice(traits, problem)
         : path == GemmPath::kMatrix  ? matrix_choice(traits, problem)
                                      : buffered_choice(traits, problem);
}

// Up to so many tokens the models of both kernels' times are compared. Of 255 choices of 15 shapes,
// 64 to 512 tokens (H200, 2026-11-30, the data that the models were fitted to), the time was 0.5 %
// above the fastest form's on average, 8 % at worst.
inline constexpr int64_t kComparedTokens = 512;

// m >= 1. A path that cannot take the problem leaves it to the next one that can; refused only if
// none does.
constexpr GemmChoice select_gemm(const GemmTraits& traits, const GemmProblem& problem) {
  if (problem.m >= traits.wide_from) {
    const GemmChoice wide = wide_choice(traits, problem);
    if (problem.m <= kComparedTokens) {
      const GemmChoice groups = warpgroup_choice(traits, problem);
      if (groups.tokens > 0 && (!wide || groups.ns + groups.ns / 50 <= wide.wide.ns)) return groups;
    }
    if (wide) return wide;
  }
  if (problem.m >= traits.stream_below && problem.m <= kStreamMostTokens) {
    const GemmChoice stream = stream_choice(traits, problem);
    const GemmChoice groups = warpgroup_choice(traits, problem);
    // By 5 %, which the model of warpgroups is above what they take: then 34 of 36 choices were the
    // faster form, two were 3 % off (H200, 2026-11-30).
    if (groups.tokens > 0)
      return stream && stream.ns <= groups.ns - groups.ns / 20 ? stream : groups;
  }
  const GemmPath first = problem.m < traits.fused_below     ? GemmPath::kFused
                         : problem.m < traits.stream_below  ? GemmPath::kStream
                         : problem.m < traits.cluster_below ? GemmPath::kCluster
                         : problem.m < traits.buffered_from ? GemmPath::kMatrix
                                                            : GemmPath::kBuffered;
  GemmChoice choice = choice_of(first, traits, problem);
  const bool is_aligned = problem.x_is_aligned && problem.y_is_aligned && problem.weight.k % 8 == 0;
  if (!choice && is_aligned && problem.m >= traits.buffered_instead_from)
    choice = buffered_choice(traits, problem);
  for (const GemmPath other : {GemmPath::kMatrix, GemmPath::kFused, GemmPath::kBuffered})
    if (!choice && other != first) choice = choice_of(other, traits, problem);
  return choice;
}

// Tile rows of a slice of the buffered path. 64 MiB are enough rows for any matmul to be at its
// best (1,170 of the widest layer here, k = 28672), and what RDNA4's last-level cache holds.
inline constexpr int64_t kSliceBytes = int64_t{64} << 20;

constexpr int64_t slice_tile_rows_of(int64_t n, int64_t k, int64_t slice_bytes = kSliceBytes) {
  const int64_t rows = tile_rows(n);
  const int64_t most = std::clamp(slice_bytes / (2 * kTileRows * k), int64_t{1}, rows);
  const int64_t slices = (rows + most - 1) / most;
  // Even ones: a last slice of a few rows would be all overhead.
  return (rows + slices - 1) / slices;
}

}  // namespace nf12
