// From a problem to the launch of a fused kernel: grid, split, and what x's layout allows. Host
// code; pure, so that it can be tested and printed without a GPU.
#pragma once
#include <cstdint>

#include "csrc/gemm/config.hpp"
#include "csrc/gemm/grid.hpp"
#include "csrc/gemm/params.hpp"

namespace nf12 {

inline constexpr int kFusedBlockRows = 2 * kTileRows;

// The kernels address a lane's row by 32 bits from the first row of its pair.
constexpr bool fused_takes(const PackedView& weight) {
  return weight.payload_stride_bytes >= 0 &&
         weight.payload_stride_bytes < int64_t{UINT32_MAX} - kTileBytes &&
         weight.index_stride >= 0 && weight.index_stride < int64_t{1} << 30;
}

// Leading tile columns over which x may be read by 4-byte scalar loads: whole ones, if rows start
// at multiples of 4 bytes and all of them lie within 32 bits of the first.
inline int scalar_columns_of(const uint16_t* x, int64_t x_stride, int64_t m, int64_t k) {
  const bool aligned =
      reinterpret_cast<uintptr_t>(x) % 4 == 0 && (m <= 1 || (x_stride % 2 == 0 && x_stride >= 0));
  const bool near = m * x_stride < int64_t{1} << 30;
  return aligned && near ? static_cast<int>(k / kTileColumns) : 0;
}

// Splits of the tile columns so that `wanted_blocks` blocks run, each wave with two pairs at least.
constexpr int fused_splits(const GemmConfig& config, const PackedView& weight,
                           int64_t wanted_blocks) {
  const int64_t rows = (weight.n + kFusedBlockRows - 1) / kFusedBlockRows;
  const int64_t most = tile_columns(weight.k) / (2 * config.waves);
  const int64_t wanted = wanted_blocks / (rows > 0 ? rows : 1);
  const int64_t splits = wanted < most ? wanted : most;
  return splits < 1 ? 1 : static_cast<int>(splits);
}

// Sets what follows from the number of splits; returns the grid.
constexpr Grid fused_grid(const GemmConfig& config, GemmParams& p, int splits) {
  const int64_t columns = tile_columns(p.weight.k);
  p.columns_per_split = static_cast<int32_t>((columns + splits - 1) / splits);
  p.splits = static_cast<int32_t>((columns + p.columns_per_split - 1) / p.columns_per_split);
  return {(p.weight.n + kFusedBlockRows - 1) / kFusedBlockRows, p.splits, config.waves * 32};
}

}  // namespace nf12
