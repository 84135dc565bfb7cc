// What a launch of the streaming kernel is given besides the problem, by value.
#pragma once
#include "csrc/gemm/params.hpp"

namespace nf12 {

struct StreamParams {
  GemmParams gemm;        // rows of x at multiples of 16 bytes, k of 64; the weight is contiguous
  int32_t columns;        // tile columns
  int32_t rows;           // tile rows of a block; of the first `longer` blocks one more
  int32_t longer;         //
  uint32_t column_magic;  // ceil(2^32 / columns): tile / columns by the upper half of a product
};

}  // namespace nf12
