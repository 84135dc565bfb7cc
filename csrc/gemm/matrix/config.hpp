// The choice behind one compiled matrix kernel: a template argument, and a row of a printed table.
#pragma once

namespace nf12 {

struct MatrixConfig {
  int tokens;     // rows of x that one decode of a weight serves, in sixteens
  int waves;      // of a block; they share x
  int tile_rows;  // of W that a wave owns; each read of x from shared memory serves all of them
  int registers;  // vector registers a lane may have: 1,536 shared out among the waves of a SIMD

  constexpr bool operator==(const MatrixConfig&) const = default;
};

}  // namespace nf12
