// The choice behind one compiled gemm kernel: a template argument, and a row of a printed table.
#pragma once
#include <cstdint>

namespace nf12 {

struct GemmConfig {
  int tokens;          // rows of x that one decode of a weight serves
  int waves;           // waves of a block; they share out the tile columns
  int pairs_ahead;     // tile pairs a wave holds undecoded in registers, all in flight
  int decode_columns;  // columns decoded at once: 64 or 32 of a tile's 64
  int plane_bytes;     // shared memory reserved at least, beyond need to bound occupancy

  constexpr bool operator==(const GemmConfig&) const = default;
};

}  // namespace nf12
