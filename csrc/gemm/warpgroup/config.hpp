#pragma once

namespace nf12 {

struct WarpgroupConfig {
  int tokens;   // a multiple of 16: rows of x that one decode of a weight serves
  int groups;   // of four waves that multiply, 64 rows of W each; one more brings x
  int stages;   // tiles of a wave's ring: all but one are on their way
  int columns;  // tile columns of the ring of x

  constexpr bool operator==(const WarpgroupConfig&) const = default;
};

}  // namespace nf12
