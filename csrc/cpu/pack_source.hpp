// The tiles of a weight that is about to be packed.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "csrc/cpu/cpu.hpp"
#include "csrc/cpu/parallel.hpp"
#include "csrc/format/layout.hpp"

namespace nf12::cpu {

struct SourceTile {
  const uint16_t* w;
  int64_t row_stride;
  int rows, columns;  // of the weight, 1..16 and 1..64; the rest is padding

  bool is_full() const { return rows == kTileRows && columns == kTileColumns; }

  // Copies to out [16, 64], contiguous, with `fill` as padding.
  void copy_to(uint16_t* out, uint16_t fill) const {
    for (int row = 0; row < kTileRows; ++row, out += kTileColumns) {
      const int valid = row < rows ? columns : 0;
      if (valid > 0) std::memcpy(out, w + row * row_stride, sizeof(uint16_t) * valid);
      std::fill(out + valid, out + kTileColumns, fill);
    }
  }
};

inline TileGrid tile_grid(const PackSource& source) {
  return {source.experts, tile_rows(source.n), tile_columns(source.k)};
}

inline SourceTile source_tile(const PackSource& source, int64_t x, int64_t r, int64_t c) {
  const int64_t row = r * kTileRows;
  const int64_t column = c * kTileColumns;
  return {source.weight + x * source.expert_stride + row * source.row_stride + column,
          source.row_stride, static_cast<int>(std::min<int64_t>(kTileRows, source.n - row)),
          static_cast<int>(std::min<int64_t>(kTileColumns, source.k - column))};
}

inline SourceTile source_tile(const PackSource& source, int64_t tile) {
  const TileGrid grid = tile_grid(source);
  const int64_t row = tile / grid.columns;
  return source_tile(source, row / grid.rows, row % grid.rows, tile % grid.columns);
}

}  // namespace nf12::cpu
