// The compiled forms of the fused kernel: one per token count.
#pragma once
#include "csrc/arch/target.hpp"
#include "csrc/gemm/config.hpp"

namespace nf12 {

inline constexpr int kFusedMaxTokens = 16;

// Two pairs ahead are 48 vector registers, half a pair decoded 16, and the sums 2 a token: from 12
// tokens on that exceeds the 96 which sixteen waves a SIMD leave. There one pair is held ahead and
// decoded whole: its successor is in flight while 32 dot products a token are taken.
// At one token a workgroup needs so little that eight would share a compute unit and their streams
// would evict each other's lines from the last-level cache; 32 KiB of plane leave two (kernels of
// this shape on an R9700: measured by the reference implementation, not by us).
NF12_INLINE constexpr GemmConfig fused_config(int tokens) {
  const bool deep = tokens <= 11;
  return {.tokens = tokens,
          .waves = 8,
          .pairs_ahead = deep ? 2 : 1,
          .decode_columns = deep ? 32 : 64,
          .plane_bytes = tokens == 1 ? 32 * 1024 : 0};
}

}  // namespace nf12
