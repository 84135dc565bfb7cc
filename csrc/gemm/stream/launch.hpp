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

// Blocks that share out the tile rows as evenly as whole rows allow: one a multiprocessor, or a
// multiple of that where a wave would have more than a whole row, for whose sums it has no place.
constexpr int64_t stream_blocks(const StreamConfig& config, int64_t tile_rows,
                                int multiprocessors) {
  const int64_t most = int64_t{config.waves} * multiprocessors;
  const int64_t rounds = (tile_rows + most - 1) / most;
  return std::min(tile_rows, rounds * multiprocessors);
}

// Sets what follows from the number of blocks; returns the grid.
constexpr Grid stream_grid(const StreamConfig& config, StreamParams& p, int64_t blocks) {
  const int64_t rows = tile_rows(p.gemm.weight.n);
  p.columns = static_cast<int32_t>(tile_columns(p.gemm.weight.k));
  p.rows = static_cast<int32_t>(rows / blocks);
  p.longer = static_cast<int32_t>(rows % blocks);
  p.column_magic = static_cast<uint32_t>(((uint64_t{1} << 32) + p.columns - 1) /
                                         static_cast<uint64_t>(p.columns));
  return {blocks, 1, config.waves * 32};
}

}  // namespace nf12
