// Matrices that NVIDIA's tensor unit copies box by box, and how a box of 64 columns lies in shared
// memory, where its matrix unit reads it.
#pragma once
#include <cstdint>

#include "csrc/format/layout.hpp"
#include "csrc/gemm/params.hpp"

namespace nf12 {

// As cuTensorMapEncodeTiled writes it.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

// A matrix in memory as the tensor unit copies it, box by box.
struct TensorLayout {
  const void* base;
  int element_bytes;  // 2 (BF16) or 8
  // Past them a box reads zeros, and writes nothing: but for columns up to the next multiple of 16
  // bytes, which an H200 writes.
  int64_t columns, rows;
  int64_t row_stride_bytes;  // a multiple of 16
  int box_columns, box_rows;
  bool permuted;  // in shared memory, as matrix instructions read it: a row is 128 bytes
};

constexpr int64_t row_stride_bytes(int64_t elements, int64_t columns, int64_t rows) {
  return rows > 1 ? 2 * elements : (2 * columns + 15) / 16 * 16;  // of one row any will do
}

// A box of x: `tokens` of 64 columns.
constexpr TensorLayout x_layout(const GemmParams& p, int tokens) {
  const int64_t k = p.weight.k;
  return {p.x, 2, k, p.m, row_stride_bytes(p.x_stride, k, p.m), kTileColumns, tokens, true};
}

// Where the matrix unit reads (row, column) of a block with rows of 64 columns, and where stores of
// it leave the outputs: eight neighbouring rows have the same 8 columns in different banks.
//
//   row r    128 bytes at 128 r, eight pieces of 16 bytes (8 columns); piece c lies at c ^ (r % 8)
NF12_INLINE constexpr uint32_t block_byte(uint32_t row, uint32_t column) {
  return 128 * row + (column / 8 ^ row % 8) * 16 + column % 8 * 2;
}

}  // namespace nf12
