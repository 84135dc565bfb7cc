// The compiled forms of the streaming kernel.
#pragma once
#include "csrc/arch/target.hpp"
#include "csrc/gemm/stream/config.hpp"

namespace nf12 {

// As many waves as 64 registers a lane allow; 16 tokens need more of them.
NF12_INLINE constexpr StreamConfig stream_config(int tokens) {
  return {.tokens = tokens, .waves = tokens == 8 ? 32 : 24};
}

}  // namespace nf12
