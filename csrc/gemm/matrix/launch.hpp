// From a problem to the launch of a matrix kernel. Host code; pure, so that it can be tested and
// printed without a GPU.
#pragma once
#include <cstdint>

#include "csrc/gemm/grid.hpp"
#include "csrc/gemm/matrix/config.hpp"
#include "csrc/gemm/params.hpp"

namespace nf12 {

constexpr int matrix_block_rows(const MatrixConfig& config) {
  return config.waves * config.tile_rows * kTileRows;
}

// A lane addresses x by 32 bits from the first token of its block.
constexpr bool matrix_takes(const MatrixConfig& config, int64_t x_stride) {
  return x_stride >= 0 && x_stride < (int64_t{1} << 31) / config.tokens - kTileColumns;
}

// Splits of the tile columns so that `wanted_blocks` blocks run, each with four columns at least:
// two are on their way before the first is multiplied.
constexpr int matrix_splits(const MatrixConfig& config, const GemmParams& p,
                            int64_t wanted_blocks) {
  const int64_t rows = (p.weight.n + matrix_block_rows(config) - 1) / matrix_block_rows(config);
  const int64_t blocks = rows * ((p.m + config.tokens - 1) / config.tokens);
  const int64_t most = tile_columns(p.weight.k) / 4;
  const int64_t wanted = wanted_blocks / (blocks > 0 ? blocks : 1);
  const int64_t splits = wanted < most ? wanted : most;
  return splits < 1 ? 1 : static_cast<int>(splits);
}

// Sets what follows from the number of splits; returns the grid. Splits begin at even columns,
// since the kernel takes them in pairs.
constexpr Grid matrix_grid(const MatrixConfig& config, GemmParams& p, int splits) {
  const int64_t columns = tile_columns(p.weight.k);
  const int64_t pairs = (columns + 1) / 2;
  p.columns_per_split = static_cast<int32_t>((pairs + splits - 1) / splits * 2);
  p.splits = static_cast<int32_t>((columns + p.columns_per_split - 1) / p.columns_per_split);
  const int64_t rows = (p.weight.n + matrix_block_rows(config) - 1) / matrix_block_rows(config);
  return {rows * ((p.m + config.tokens - 1) / config.tokens), p.splits, config.waves * 32};
}

}  // namespace nf12
