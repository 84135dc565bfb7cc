#pragma once

namespace nf12 {

struct ClusterConfig {
  int tokens;   // a multiple of 8: rows of x that one decode of a weight serves
  int waves;    // of a block that multiply; one more fetches x
  int stages;   // tiles of a wave's ring: all but one are on their way
  int columns;  // tile columns of the ring of x

  constexpr bool operator==(const ClusterConfig&) const = default;
};

}  // namespace nf12
