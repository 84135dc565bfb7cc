// What a launch of any gemm kernel is given: y = x W^T + bias, by value in the kernel arguments.
#pragma once
#include <cstdint>

#include "csrc/format/layout.hpp"

namespace nf12 {

struct GemmParams {
  PackedView weight;     // [n, k], base already folded into `scale`
  const uint16_t* x;     // [m, k] BF16, any alignment
  const uint16_t* bias;  // [n] BF16, or null
  uint16_t* y;           // [m, n] BF16
  float* partials;       // [splits, m, n] FP32 when splits > 1, else null
  int64_t x_stride;      // elements between rows of x
  int64_t y_stride;      // elements between rows of y
  int32_t m;
  int32_t splits;             // blocks that share out the tile columns of one row pair
  int32_t columns_per_split;  // tile columns that one blockIdx.y owns
  int32_t scalar_columns;     // leading tile columns over which x may be read 4 bytes at a time
  float scale;                // 2^-s, s = scale_shift(base)
};

// n and k fit 31 bits. In 32-bit arithmetic: gfx12 has no scalar instruction for the low half of a
// 64-bit shift, and one value in a vector register drags all that depends on it along.
NF12_INLINE constexpr int tile_rows_of(const PackedView& weight) {
  return static_cast<int>((static_cast<uint32_t>(weight.n) + kTileRows - 1) / kTileRows);
}
NF12_INLINE constexpr int tile_columns_of(const PackedView& weight) {
  return static_cast<int>((static_cast<uint32_t>(weight.k) + kTileColumns - 1) / kTileColumns);
}

}  // namespace nf12
