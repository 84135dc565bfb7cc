// The compiled forms of the streaming kernel.
#pragma once
#include "csrc/arch/target.hpp"
#include "csrc/gemm/stream/config.hpp"

namespace nf12 {

inline constexpr int kStreamTokens[] = {8, 16, 32};
inline constexpr int kStreamMostTokens = 32;

// As many waves as there are registers for: 64 a lane, 80, 128.
NF12_INLINE constexpr StreamConfig stream_config(int tokens) {
  return {.tokens = tokens, .waves = tokens == 8 ? 32 : tokens == 16 ? 24 : 16};
}

}  // namespace nf12
