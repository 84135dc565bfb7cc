// From a problem to the launch of a warpgroup kernel. Host code; pure.
#pragma once
#include <algorithm>
#include <climits>
#include <cstdint>

#include "csrc/gemm/cluster/launch.hpp"
#include "csrc/gemm/warpgroup/instances/configs.hpp"
#include "csrc/gemm/warpgroup/params.hpp"
#include "csrc/gemm/warpgroup/plan.hpp"

namespace nf12 {

constexpr int warpgroup_shared_bytes(int tokens, const ClusterShape& shape) {
  return with_tokens<kWarpgroupTokens>(tokens, [&]<int t>(std::integral_constant<int, t>) {
    return WarpgroupPlan<warpgroup_config(t)>::shared_bytes(shape.rows, shape.blocks);
  });
}

// The shape that a model of the time finds fastest, of those whose blocks have so much shared
// memory; no rows if there is none. In nanoseconds (H200, 2026-11-30): a step of a block, in which
// each group multiplies a tile row of four, and its part of all bytes at 4.3 TB/s; then what starts
// and ends a launch, and what a block sends to the others. Fitted to 275 launches of eight shapes,
// of which it found those within 0.2 % of the fastest on average, 4 % at worst; the forms for 80
// and 96 tokens had three groups then.
constexpr ClusterShape warpgroup_shape(const WarpgroupConfig& config, const PackedView& weight,
                                       const ClusterCounts& at_once,
                                       int most_shared_bytes = INT_MAX) {
  const auto all_rows = static_cast<int>(tile_rows(weight.n));
  const auto columns = static_cast<int>(tile_columns(weight.k));
  const int tokens = config.tokens, most_rows = config.groups * kGroupTileRows;
  ClusterShape best = {0, 1, 1};
  int64_t least = INT64_MAX;
  for (int blocks = 1; blocks <= std::min(arch::kMostClusterBlocks, columns); ++blocks) {
    const int clusters = at_once[blocks];
    if (clusters == 0) continue;
    const int stretch = (columns + blocks - 1) / blocks;
    const int fewest = (all_rows + clusters * most_rows - 1) / (clusters * most_rows);
    for (int rounds = fewest; rounds <= fewest + 2; ++rounds) {
      const int rows = (all_rows + clusters * rounds - 1) / (clusters * rounds);
      const int row_groups = (rows + kGroupTileRows - 1) / kGroupTileRows;
      const int turns =
          std::min({config.groups / row_groups, config.columns - 1, columns / blocks});
      const int64_t steps = (stretch + turns - 1) / turns;
      const int64_t step = 210 + tokens + rows * turns * (21 + tokens / 9) + 155 * (turns - 1);
      const int64_t at_work = std::min((all_rows + rows - 1) / rows, clusters);
      const int64_t bytes = at_work * blocks * stretch * rows * kTileBytes / 4300;
      const int64_t time = rounds * (std::max(steps * step, bytes) + 3700 +
                                     int64_t{2} * rows * tokens * (blocks - 1) / blocks);
      const ClusterShape shape = {rows, turns, blocks};
      if (time >= least || warpgroup_shared_bytes(tokens, shape) > most_shared_bytes) continue;
      least = time;
      best = shape;
    }
  }
  return best;
}

// Whole tiles; rows of x that the tensor unit can copy.
constexpr bool warpgroup_takes(const PackedView& weight, int64_t m, int64_t x_stride) {
  return cluster_takes(weight) && (m == 1 || x_stride >= weight.k);
}

constexpr Grid warpgroup_grid(const WarpgroupConfig& config, ClusterParams& p,
                              const ClusterShape& shape) {
  p.rows = shape.rows;
  p.turns = shape.turns;
  p.gemm.splits = shape.blocks;
  return {(tile_rows(p.gemm.weight.n) + shape.rows - 1) / shape.rows * shape.blocks, 1,
          (config.groups + 1) * kGroupTileRows * 32};
}

}  // namespace nf12
