// From a problem to the launch of a cluster kernel. Host code; pure.
#pragma once
#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>

#include "csrc/gemm/cluster/instances/configs.hpp"
#include "csrc/gemm/cluster/params.hpp"
#include "csrc/gemm/cluster/plan.hpp"
#include "csrc/gemm/forms.hpp"
#include "csrc/gemm/grid.hpp"

namespace nf12 {

// How many clusters of so many blocks run at once; 0: the card has none of them.
using ClusterCounts = std::array<int, arch::kMostClusterBlocks + 1>;

// How tile rows and columns are shared out.
struct ClusterShape {
  int rows;    // tile rows of a cluster
  int turns;   // waves of a block at one row
  int blocks;  // of a cluster
};

constexpr int cluster_shared_bytes(int tokens, const ClusterShape& shape) {
  return with_tokens<kClusterTokens>(tokens, [&]<int t>(std::integral_constant<int, t>) {
    return ClusterPlan<cluster_config(t)>::shared_bytes(shape.rows, shape.turns, shape.blocks);
  });
}

// The shape that a model of the time finds fastest, of those whose blocks have so much shared
// memory; no rows if there is none. A block needs, in nanoseconds (H200, 2026-11-29), 53 for a tile
// with 14 waves at work, or one for 42 bytes of what it reads; 2,500 to start and end, and 700 more
// in a cluster. Cheap: it is part of every call.
constexpr ClusterShape cluster_shape(const ClusterConfig& config, const PackedView& weight,
                                     int64_t m, const ClusterCounts& at_once,
                                     int most_shared_bytes = INT_MAX) {
  const auto all_rows = static_cast<int>(tile_rows(weight.n));
  const auto columns = static_cast<int>(tile_columns(weight.k));
  ClusterShape best = {0, 1, 1};
  int64_t least = INT64_MAX;
  for (int blocks = 1; blocks <= std::min(arch::kMostClusterBlocks, columns); ++blocks) {
    if (at_once[blocks] == 0) continue;
    const int stretch = (columns + blocks - 1) / blocks;
    // As few rounds of clusters as rows allow, or one more.
    const int fewest =
        (all_rows + at_once[blocks] * config.waves - 1) / (at_once[blocks] * config.waves);
    for (int rounds = fewest; rounds <= fewest + 1; ++rounds) {
      const int rows = (all_rows + at_once[blocks] * rounds - 1) / (at_once[blocks] * rounds);
      const int turns = std::min({config.waves / rows, config.columns / 2, stretch});
      const int64_t tiles = int64_t{rows} * ((stretch + turns - 1) / turns * turns);
      const int64_t work = 53 * 14 * tiles / std::min(rows * turns, 14);
      const int64_t reads = stretch * (int64_t{rows} * kTileBytes + m * 128) / 42;
      const int64_t time = rounds * (std::max(work, reads) + 2500 + (blocks > 1 ? 700 : 0));
      const ClusterShape shape = {rows, turns, blocks};
      if (time >= least || cluster_shared_bytes(config.tokens, shape) > most_shared_bytes) continue;
      least = time;
      best = shape;
    }
  }
  return best;
}

// The kernel takes whole tiles and reads x in pieces of 16 bytes.
constexpr bool cluster_takes(const PackedView& weight) {
  return weight.k % kTileColumns == 0 &&
         tile_columns(weight.k) < INT32_MAX / arch::kMostClusterBlocks &&
         tile_rows(weight.n) < INT32_MAX / arch::kMostClusterBlocks;
}

constexpr Grid cluster_grid(const ClusterConfig& config, ClusterParams& p,
                            const ClusterShape& shape) {
  p.rows = shape.rows;
  p.turns = shape.turns;
  p.gemm.splits = shape.blocks;
  return {(tile_rows(p.gemm.weight.n) + shape.rows - 1) / shape.rows * shape.blocks, 1,
          (config.waves + 1) * 32};
}

}  // namespace nf12
