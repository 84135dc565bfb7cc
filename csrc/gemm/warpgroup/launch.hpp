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

// Waves that permute x keep one column more in the ring than there are turns, or each would wait
// for the one before; without them a turn needs a column to be multiplied and one to come
// (tokens.hpp).
constexpr int most_turns(const WarpgroupConfig& config) {
  return config.permutes ? config.columns - 1 : config.columns / 2;
}

// What a launch takes, in nanoseconds (H200, 2026-11-30), `clusters` of its blocks at once: steps
// of a block, in which each group multiplies a tile row of four, but no less than the part of all
// bytes at 4.3 TB/s; what starts and ends a round of blocks; and what a block sends to the others.
// With x permuted fitted to 275 launches of eight shapes, of which it found those within 0.2 % of
// the fastest on average, 4 % at worst; without to 499, 0.1 % and 0.9 %.
constexpr int64_t warpgroup_ns(const WarpgroupConfig& config, const PackedView& weight,
                               int64_t token_tiles, int64_t clusters, const ClusterShape& shape) {
  const int64_t columns = tile_columns(weight.k), tokens = config.tokens;
  const auto [rows, turns, blocks] = shape;
  const int64_t pieces = (tile_rows(weight.n) + rows - 1) / rows * token_tiles;
  const int64_t rounds = (pieces + clusters - 1) / clusters, at_work = std::min(pieces, clusters);
  const int64_t stretch = (columns + blocks - 1) / blocks, steps = (stretch + turns - 1) / turns;
  const int64_t bytes = at_work * blocks * stretch * rows * kTileBytes / 4300;
  const int64_t tiles = rows * turns, more = turns - 1,
                sent = rows * tokens * (blocks - 1) / blocks;
  if (config.permutes) {
    // Where few registers are left to the waves that permute, these need so long for a column.
    const int64_t permuted = tokens > 80 ? 550 * turns : 0;
    const int64_t step = std::max(210 + tokens + tiles * (21 + tokens / 9) + 155 * more, permuted);
    return rounds * (std::max(steps * step, bytes) + 3700 + 2 * sent);
  }
  const int64_t step = 400 + tokens * 17 / 16 + tiles * (23 + tokens / 14) + 75 * more;
  return rounds * (std::max(steps * step, bytes) + 3200 + 150 * more +
                   (blocks > 1 ? 300 + 100 * blocks : 0) + sent * 12 / 5);
}

// The shape that this model finds fastest for so many tiles of tokens, of those whose blocks have
// so much shared memory; no rows if there is none.
constexpr ClusterShape warpgroup_shape(const WarpgroupConfig& config, const PackedView& weight,
                                       int64_t token_tiles, const ClusterCounts& at_once,
                                       int most_shared_bytes = INT_MAX) {
  const auto columns = static_cast<int>(tile_columns(weight.k));
  const int64_t all_rows = token_tiles * tile_rows(weight.n);
  ClusterShape best = {0, 1, 1};
  int64_t least = INT64_MAX;
  for (int blocks = 1; blocks <= std::min(arch::kMostClusterBlocks, columns); ++blocks) {
    const int64_t clusters = at_once[blocks];
    if (clusters == 0) continue;
    const int64_t most = clusters * config.groups * kGroupTileRows;
    const int64_t fewest = (all_rows + most - 1) / most;
    for (int64_t rounds = fewest; rounds <= fewest + 2; ++rounds) {
      const auto rows = static_cast<int>((all_rows + clusters * rounds - 1) / (clusters * rounds));
      const int row_groups = (rows + kGroupTileRows - 1) / kGroupTileRows;
      const int turns =
          std::min({config.groups / row_groups, most_turns(config), columns / blocks});
      const ClusterShape shape = {rows, turns, blocks};
      const int64_t time = warpgroup_ns(config, weight, token_tiles, clusters, shape);
      if (time >= least || warpgroup_shared_bytes(config.tokens, shape) > most_shared_bytes)
        continue;
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

// Each row of the grid has as many tokens as any other.
constexpr Grid warpgroup_grid(const WarpgroupConfig& config, WarpgroupParams& all,
                              const ClusterShape& shape) {
  ClusterParams& p = all.cluster;
  p.rows = shape.rows;
  p.turns = shape.turns;
  p.gemm.splits = shape.blocks;
  const int64_t rows = (p.gemm.m + config.tokens - 1) / config.tokens;
  all.tokens = static_cast<int32_t>(((p.gemm.m + rows - 1) / rows + 15) / 16 * 16);
  return {(tile_rows(p.gemm.weight.n) + shape.rows - 1) / shape.rows * shape.blocks, rows,
          (config.groups + config.permutes) * kGroupTileRows * 32};
}

}  // namespace nf12
