// What a launch of the streaming kernel is given besides the problem, by value.
#pragma once
#include "csrc/gemm/params.hpp"

namespace nf12 {

// A sum and the word that says it is there, which travel together.
struct alignas(16) FlaggedSum {
  float value;
  uint32_t unused;
  uint64_t flag;
};

struct StreamParams {
  GemmParams gemm;        // rows of x at multiples of 16 bytes, k of 64; the weight is contiguous
  int32_t columns;        // tile columns
  int32_t unit;           // tiles that stay together: a tile row, or one
  int32_t units;          // of a block; of the first `longer` blocks one more
  int32_t longer;         //
  uint32_t column_magic;  // ceil(2^32 / columns): a tile of a block / columns by multiply_high
  FlaggedSum* sums;       // [blocks, tokens, 16], of the tile row that a block leaves unfinished
  uint64_t flag;          // with each of them; of this launch alone

  // The first tile of a block.
  NF12_INLINE constexpr int start_of(int block) const {
    return (block * units + (block < longer ? block : longer)) * unit;
  }
};

}  // namespace nf12
