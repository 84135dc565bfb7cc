// Experts as one stack of tiles, and how the waves of a grid share it out: wave g of `waves` takes
// the tiles g, g + waves, ... in (expert, tile row, tile column) order, so that neighbouring waves
// work on neighbouring memory.
#pragma once
#include <cstdint>

#include "csrc/format/layout.hpp"

namespace nf12 {

// [experts, n, k]; a plain weight is a stack of one.
struct PackedStack {
  PackedView first;                     // expert 0
  int64_t payload_expert_stride_bytes;  // between experts
  int64_t index_expert_stride;          // likewise, in words

  NF12_INLINE constexpr const uint8_t* tile(int x, int r, int c) const {
    return first.tile(r, c) + x * payload_expert_stride_bytes;
  }
  NF12_INLINE constexpr const uint32_t* index_word(int x, int r, int c) const {
    return first.index + x * index_expert_stride + r * first.index_stride + c;
  }
};

// Dense BF16 [experts, n, k], columns contiguous; strides in elements.
template <typename Bf16>
struct DenseStack {
  Bf16* weights;
  int64_t expert_stride, row_stride;
  int32_t n, k;

  NF12_INLINE constexpr Bf16* tile(int x, int r, int c) const {
    return weights + x * expert_stride + int64_t{r} * kTileRows * row_stride +
           int64_t{c} * kTileColumns;
  }
  // Rows and columns of the weight from the start of a tile on; more than a tile's where it is
  // whole.
  NF12_INLINE constexpr int rows_from(int r) const { return n - r * kTileRows; }
  NF12_INLINE constexpr int columns_from(int c) const { return k - c * kTileColumns; }
};

// `waves` tiles further, as steps in each dimension: the walk needs no division.
struct TileSteps {
  uint32_t tiles, waves;
  int32_t rows, columns;  // of the grid of tiles, R and C
  int32_t step_experts, step_rows, step_columns;
};

constexpr TileSteps tile_steps(int64_t experts, int64_t n, int64_t k, int64_t waves) {
  const int64_t rows = tile_rows(n), columns = tile_columns(k);
  return {static_cast<uint32_t>(experts * rows * columns),
          static_cast<uint32_t>(waves),
          static_cast<int32_t>(rows),
          static_cast<int32_t>(columns),
          static_cast<int32_t>(waves / columns / rows),
          static_cast<int32_t>(waves / columns % rows),
          static_cast<int32_t>(waves % columns)};
}

// What 32-bit numbers of tiles, with a grid of waves added, can count.
constexpr bool tiles_countable(int64_t experts, int64_t n, int64_t k) {
  constexpr int64_t kMost = int64_t{1} << 31;
  return n < kMost && k < kMost && tile_rows(n) * tile_columns(k) < kMost &&
         experts * (tile_rows(n) * tile_columns(k)) < kMost;
}

// A place in the walk; uniform.
struct TilePlace {
  uint32_t tile;  // in (x, r, c) order
  int x, r, c;

  NF12_DEVICE static TilePlace of(const TileSteps& steps, uint32_t tile) {
    const uint32_t row = tile / static_cast<uint32_t>(steps.columns);
    const uint32_t x = row / static_cast<uint32_t>(steps.rows);
    return {tile, static_cast<int>(x), static_cast<int>(row - x * steps.rows),
            static_cast<int>(tile - row * steps.columns)};
  }
  NF12_DEVICE void advance(const TileSteps& steps) {
    tile += steps.waves;
    c += steps.step_columns;
    const int next_row = c >= steps.columns;
    c -= next_row * steps.columns;
    r += steps.step_rows + next_row;
    const int next_expert = r >= steps.rows;
    r -= next_expert * steps.rows;
    x += steps.step_experts + next_expert;
  }
};

}  // namespace nf12
