// The inner loops of unpack and gather, one set per instruction level. They decode the payload
// only; escapes are put in afterwards by the caller.
#pragma once
#include <cstdint>

#include "csrc/cpu/level.hpp"
#include "csrc/format/layout.hpp"

namespace nf12::cpu {

struct UnpackKernels {
  // out [16, 64] = the exact weights of a tile; rows of out lie out_row_stride elements apart.
  void (*decode_tile)(const uint8_t* tile, int base, uint16_t* out, int64_t out_row_stride);

  // out [64] = row `row` of a tile.
  void (*decode_row)(const uint8_t* tile, int row, int base, uint16_t* out);
};

extern const UnpackKernels kUnpackPortable;
extern const UnpackKernels kUnpackAvx2;

inline const UnpackKernels& unpack_kernels(Level level) {
  if constexpr (kX86) {
    if (level >= Level::kAvx2) return kUnpackAvx2;
  }
  return kUnpackPortable;
}

}  // namespace nf12::cpu
