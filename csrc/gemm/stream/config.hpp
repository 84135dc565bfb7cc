#pragma once

namespace nf12 {

struct StreamConfig {
  int tokens;  // 8, 16 or 32: rows of x that one decode of a weight serves
  int waves;   // of a block; a card runs one block a multiprocessor

  constexpr bool operator==(const StreamConfig&) const = default;
};

}  // namespace nf12
