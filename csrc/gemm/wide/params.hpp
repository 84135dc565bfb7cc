// What a launch of the wide kernel is given, by value.
#pragma once
#include "csrc/gemm/params.hpp"

namespace nf12 {

// As cuTensorMapEncodeTiled writes it.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

// A matrix in memory as the tensor unit copies it, box by box.
struct TensorLayout {
  const void* base;
  int element_bytes;         // 2 (BF16) or 8
  int64_t columns, rows;     // elements; past them a box reads zeros and writes nothing
  int64_t row_stride_bytes;  // a multiple of 16
  int box_columns, box_rows;
  bool permuted;  // in shared memory, as matrix instructions read it: a row is 128 bytes
};

struct WideParams {
  GemmParams gemm;       // x and y lie where the maps say; partials: [blocks, 128, tokens] of sums
  uint64_t* flags;       // [blocks, 2]: the sums of a block's warpgroup are in `partials`
  uint64_t flag;         // says so; of this launch alone
  int32_t columns;       // tile columns
  int32_t token_tiles;   // of all tokens
  int32_t tiles;         // of outputs, those of the same rows adjacent
  int32_t shared_tiles;  // the first ones, whose k-blocks the blocks share out
  int32_t blocks;        // of the launch, each with something to do
  TensorMap encoded_map, x_map, y_map;
};

// Of the kernel that decodes every weight once.
struct OnceParams {
  WideParams wide;   // tiles: those of the row blocks of `once_blocks` neighbours, see once.hpp
  uint8_t* decoded;  // [row_blocks, columns, 16,384]
  uint32_t* counts;  // [1 + row_blocks * groups], 0 at the start: jobs taken, tile rows of a group
  int32_t row_blocks;  // 128 rows each
  int32_t groups;      // of tile columns
  int32_t together;    // row blocks that the grid works on at a time
};

}  // namespace nf12
