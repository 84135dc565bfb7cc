// From a problem to the launch of a cluster kernel. Host code; pure.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

#include "csrc/gemm/cluster/config.hpp"
#include "csrc/gemm/cluster/params.hpp"
#include "csrc/gemm/cluster/plan.hpp"
#include "csrc/gemm/grid.hpp"

namespace nf12 {

// How many clusters of so many blocks run at once; 0: the card has none of them.
using ClusterCounts = std::array<int, kMostClusterBlocks + 1>;

// How tile rows and columns are shared out.
struct ClusterShape {
  int rows;    // tile rows of a cluster
  int turns;   // waves of a block at one row
  int blocks;  // of a cluster
};

// The shape that a model of the time finds fastest. A block needs, in nanoseconds (H200, 2026-11-29),
// 53 for a tile with 14 waves at work, or one for 42 bytes of what it reads; 2,500 to start and
// end, and 700 more in a cluster.
constexpr ClusterShape cluster_shape(const ClusterConfig& config, const PackedView& weight,
                                     int64_t m, const ClusterCounts& at_once) {
  const int64_t all_rows = tile_rows(weight.n), columns = tile_columns(weight.k);
  ClusterShape best = {config.waves, 1, 1};
  int64_t least = INT64_MAX;
  for (int blocks = 1; blocks <= kMostClusterBlocks; ++blocks) {
    if (blocks > columns || at_once[blocks] == 0) continue;
    const int64_t stretch = (columns + blocks - 1) / blocks;
    for (int rows = static_cast<int>(std::min<int64_t>(config.waves, all_rows)); rows >= 1; --rows) {
      const auto turns = static_cast<int>(
          std::min({int64_t{config.waves / rows}, int64_t{config.columns / 2}, stretch}));
      const int64_t waves = int64_t{rows} * turns;
      const int64_t clusters = (all_rows + rows - 1) / rows;
      const int64_t rounds = (clusters + at_once[blocks] - 1) / at_once[blocks];
      const int64_t tiles = rows * ((stretch + turns - 1) / turns * turns);
      const int64_t work = 53 * tiles * 14 / std::min<int64_t>(waves, 14);
      const int64_t reads = (rows * stretch * kTileBytes + stretch * m * 128) / 42;
      const int64_t time = rounds * (std::max(work, reads) + 2500 + (blocks > 1 ? 700 : 0));
      if (time < least) {
        least = time;
        best = {rows, turns, blocks};
      }
    }
  }
  return best;
}

// The kernel takes whole tiles and reads x in pieces of 16 bytes.
constexpr bool cluster_takes(const PackedView& weight) {
  return weight.k % kTileColumns == 0 && tile_columns(weight.k) * kMostClusterBlocks < INT32_MAX &&
         tile_rows(weight.n) < INT32_MAX / kMostClusterBlocks;
}

constexpr Grid cluster_grid(const ClusterConfig& config, ClusterParams& p, ClusterShape shape) {
  p.rows = shape.rows;
  p.turns = shape.turns;
  p.gemm.splits = shape.blocks;
  return {(tile_rows(p.gemm.weight.n) + shape.rows - 1) / shape.rows * shape.blocks, 1,
          (config.waves + 1) * 32};
}

}  // namespace nf12
