// What a launch of the wide kernel is given, by value.
#pragma once
#include "csrc/gemm/params.hpp"
#include "csrc/gemm/tensor_map.hpp"

namespace nf12 {

struct WideParams {
  GemmParams gemm;       // x and y lie where the maps say; partials: [blocks, 128, tokens] of sums
  uint64_t* flags;       // [blocks, 2]: the sums of a block's warpgroup are in `partials`
  uint64_t flag;         // says so; of this launch alone
  int32_t columns;       // tile columns
  int32_t token_tiles;   // of all tokens
  int32_t tiles;         // of outputs, those of the same rows adjacent
  int32_t shared_tiles;  // the first ones, whose k-blocks the blocks share out
  int32_t sharers;       // blocks of each of them; 0: stretches alike, whatever tiles they cross
  int32_t own;           // with sharers: k-blocks of the last one, which owns the tile
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
