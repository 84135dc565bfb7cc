// The compiled forms of the wide kernel.
#pragma once
#include "csrc/arch/target.hpp"
#include "csrc/gemm/wide/config.hpp"

namespace nf12 {

inline constexpr int kWideTokens[] = {128, 192, 256};
inline constexpr int kOnceTokens = 256;  // of the form that decodes once

// As many stages as shared memory holds: 64 to 128 KiB of x, 39 to 78 KiB of encoded weights.
NF12_INLINE constexpr WideConfig wide_config(int tokens) {
  return {.tokens = tokens,
          .token_stages = tokens == 128 ? 6 : 4,
          .encoded_stages = tokens == 256 ? 2 : 5};
}

}  // namespace nf12
