#pragma once

namespace nf12 {

struct WarpgroupConfig {
  int tokens;   // a multiple of 16: rows of x that one decode of a weight serves
  int groups;   // of four waves that multiply, 64 rows of W each
  int stages;   // tiles of a wave's ring: all but one are on their way
  int columns;  // tile columns of the ring of x
  // How a decoded tile and x come to the same order of columns: either one more group permutes x
  // to that of the lanes that decode (permute.hpp), or lanes pick their weights in that of x
  // (weights.hpp).
  bool permutes;

  constexpr bool operator==(const WarpgroupConfig&) const = default;
};

}  // namespace nf12
