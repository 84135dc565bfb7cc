// The compiled forms of the matrix kernel, one per number of tokens a block takes.
#pragma once
#include "csrc/arch/target.hpp"
#include "csrc/gemm/matrix/config.hpp"

namespace nf12 {

// Up to 64 tokens a wave owns two tile rows, so that four tiles of weights are in flight and every
// read of x serves two multiplications. At 128 tokens the sums of two would leave no room for that.
NF12_INLINE constexpr MatrixConfig matrix_config(int tokens) {
  return {.tokens = tokens,
          .waves = tokens == 128 ? 8 : 4,
          .tile_rows = tokens == 128 ? 1 : 2,
          .registers = tokens == 16   ? 144
                       : tokens == 64 ? 216
                                      : 168};
}

}  // namespace nf12
