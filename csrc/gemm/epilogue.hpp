// The last step of every gemm kernel: y = bf16(fma(acc, 2^-s, bias)), rounded once.
#pragma once
#include <cstdint>

#include "csrc/arch/target.hpp"

namespace nf12 {

// Round to nearest even; a NaN keeps its sign and high payload and stays a NaN.
NF12_INLINE constexpr uint16_t bf16_from_float_bits(uint32_t bits) {
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  const uint32_t rounded = bits + 0x7FFFu + (bits >> 16 & 1u);
  return static_cast<uint16_t>((is_nan ? bits | 0x00400000u : rounded) >> 16);
}
static_assert(bf16_from_float_bits(0x3F808000u) == 0x3F80);  // a tie goes to even
static_assert(bf16_from_float_bits(0x3F818000u) == 0x3F82);
static_assert(bf16_from_float_bits(0x7F800001u) == 0x7FC0);  // not infinity
static_assert(bf16_from_float_bits(0x7F7FFFFFu) == 0x7F80);

NF12_INLINE float float_from_bf16(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

// Added where there is no bias: it changes no sum, not even a negative zero.
inline constexpr float kNoBias = -0.0f;

NF12_INLINE uint16_t finish(float acc, float scale, float bias) {
  return bf16_from_float_bits(__builtin_bit_cast(uint32_t, __builtin_fmaf(acc, scale, bias)));
}

}  // namespace nf12
