// From a problem to the launch of a streaming kernel. Host code; pure.
#pragma once
#include <algorithm>
#include <cstdint>

#include "csrc/gemm/grid.hpp"
#include "csrc/gemm/stream/config.hpp"
#include "csrc/gemm/stream/params.hpp"

namespace nf12 {

// The kernel takes whole, contiguous tiles and reads x in pieces of 16 bytes. column_magic is exact
// from 2 to 8192 columns; tile numbers fit 31 bits.
constexpr bool stream_takes(const PackedView& weight) {
  const int64_t columns = tile_columns(weight.k), rows = tile_rows(weight.n);
  return weight.k % kTileColumns == 0 && columns >= 2 && columns <= 8192 &&
         rows * columns < int64_t{1} << 31 && weight.payload_stride_bytes == columns * kTileBytes &&
         weight.index_stride == columns;
}

// The rows of x where the kernel reads them.
inline bool rows_are_aligned(const uint16_t* x, int64_t x_stride, int64_t m) {
  return reinterpret_cast<uintptr_t>(x) % 16 == 0 &&
         (m == 1 || (x_stride % 8 == 0 && x_stride >= 0));
}

// How tiles are shared out: as evenly as whole rows allow, or exactly, and neighbours share a row.
struct StreamShape {
  int64_t blocks;
  bool shares_rows;
};

// Tiles of the block that has most.
constexpr int64_t longest_stretch(const StreamShape& shape, const PackedView& weight) {
  const int64_t columns = tile_columns(weight.k), unit = shape.shares_rows ? 1 : columns;
  const int64_t units = tile_rows(weight.n) * (columns / unit);
  return (units + shape.blocks - 1) / shape.blocks * unit;
}

// One block a multiprocessor, or a multiple of that where a wave would have more than a whole row,
// for whose sums it has no place. Rows are shared where the longest block then has more than 34
// tiles less: a tile less saves 10 to 25 ns; another block's sums, and x read at other columns than
// the neighbours read it at, cost 500 and more (H200, 2026-11-30, rows of launches, 27 shapes, m =
// 1, 8, 16: of 81 choices one is 7 % off the better one, 2560 x 2560 at 16 tokens, the others 3 %
// at most). The limit is above the 32 of 4096 x 1024, where sharing gains nothing.
constexpr StreamShape stream_shape(const StreamConfig& config, const PackedView& weight,
                                   int multiprocessors) {
  const int64_t rows = tile_rows(weight.n), columns = tile_columns(weight.k);
  const int64_t most = int64_t{config.waves} * multiprocessors;
  const int64_t rounds = (rows + most - 1) / most;
  const StreamShape whole = {std::min(rows, rounds * multiprocessors), false};
  if (rounds > 1) return whole;
  const StreamShape shared = {std::min<int64_t>(rows * columns, multiprocessors), true};
  return longest_stretch(whole, weight) - longest_stretch(shared, weight) > 34 ? shared : whole;
}

// What a launch for 17 to 32 tokens takes, in nanoseconds (H200, 2026-11-30): the longest block's
// tiles, more for every token, as x comes from the cache for each; and its rows, whose sums of
// every token meet. Of 33 launches of 11 shapes with whole rows within 8 %.
constexpr int64_t stream_ns(const StreamShape& shape, const PackedView& weight, int64_t m) {
  const int64_t rows = (tile_rows(weight.n) + shape.blocks - 1) / shape.blocks;
  return 2300 + longest_stretch(shape, weight) * (49 + m / 4) + rows * 10 * m +
         (shape.shares_rows ? 1000 : 0);
}

constexpr int64_t stream_workspace_bytes(const StreamConfig& config, const StreamShape& shape) {
  if (!shape.shares_rows) return 0;
  return shape.blocks * config.tokens * kTileRows * static_cast<int64_t>(sizeof(FlaggedSum));
}

// Sets what follows from the shape; returns the grid.
constexpr Grid stream_grid(const StreamConfig& config, StreamParams& p, const StreamShape& shape) {
  const int64_t blocks = shape.blocks;
  p.columns = static_cast<int32_t>(tile_columns(p.gemm.weight.k));
  p.unit = shape.shares_rows ? 1 : p.columns;
  const int64_t units = tile_rows(p.gemm.weight.n) * (p.columns / p.unit);
  p.units = static_cast<int32_t>(units / blocks);
  p.longer = static_cast<int32_t>(units % blocks);
  p.column_magic = static_cast<uint32_t>(((uint64_t{1} << 32) + p.columns - 1) /
                                         static_cast<uint64_t>(p.columns));
  return {blocks, 1, config.waves * 32};
}

}  // namespace nf12
