#pragma once

namespace nf12 {

struct WideConfig {
  int tokens;          // of a tile: 128, 192 or 256, the width of the matrix instruction
  int token_stages;    // k-blocks of x in flight
  int encoded_stages;  // k-blocks of encoded weights in flight

  constexpr bool operator==(const WideConfig&) const = default;
};

}  // namespace nf12
