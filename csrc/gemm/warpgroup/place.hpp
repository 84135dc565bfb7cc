// Which rows and columns of W a wave of a warpgroup kernel has.
#pragma once
#include "csrc/gemm/warpgroup/params.hpp"
#include "csrc/gemm/warpgroup/plan.hpp"

namespace nf12 {

struct WarpgroupPlace {
  int rank, begin, columns;  // the block's tile columns
  int wave, group;
  int first_row, rows;  // the cluster's first tile row, and how many exist
  int row_groups;       // of four of these
  int own;              // the wave's tile row, counted from first_row
  bool has_row;         // there may be none: its fragments are zeros then
  int turn, count;      // the wave's first tile column, of the block's, and how many; the next is
                        // p.turns further. No columns: the whole group idles.
};

template <WarpgroupConfig config>
NF12_DEVICE WarpgroupPlace warpgroup_place(const ClusterParams& p) {
  using Plan = WarpgroupPlan<config>;
  const int columns = tile_columns_of(p.gemm.weight), blocks = p.gemm.splits;
  WarpgroupPlace place;
  place.rank = arch::cluster_rank();
  place.begin = columns * place.rank / blocks;
  place.columns = columns * (place.rank + 1) / blocks - place.begin;
  place.wave = arch::wave();
  place.group = place.wave / kGroupTileRows;
  place.first_row = arch::block_x() / blocks * p.rows;
  const int left = tile_rows_of(p.gemm.weight) - place.first_row;
  place.rows = left < p.rows ? left : p.rows;
  place.row_groups = (place.rows + kGroupTileRows - 1) / kGroupTileRows;
  place.own = place.group / p.turns * kGroupTileRows + place.wave % kGroupTileRows;
  place.turn = place.group % p.turns;
  const bool multiplies = place.group < Plan::kGroups && place.group / p.turns < place.row_groups;
  place.count = multiplies ? (place.columns - place.turn + p.turns - 1) / p.turns : 0;
  place.has_row = place.count > 0 && place.own < place.rows;
  return place;
}

}  // namespace nf12
