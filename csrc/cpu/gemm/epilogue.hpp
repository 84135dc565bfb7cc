// From an FP32 sum to a BF16 output: y = bf16(fma(acc, 2^-s, bias)).
#pragma once
#include <cstring>

#include "csrc/format/layout.hpp"

namespace nf12::cpu {

NF12_INLINE uint32_t float_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

NF12_INLINE float bits_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

NF12_INLINE float bf16_to_float(uint16_t bits) { return bits_float(static_cast<uint32_t>(bits) << 16); }

// Round to nearest, ties to even. A NaN is cut and made quiet instead: rounding could carry its
// mantissa into the exponent's end and return Inf, or cut it to nothing.
NF12_INLINE uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// 2^-s: exact, since |s| <= 16.
NF12_INLINE float output_scale(int base) {
  return bits_float(static_cast<uint32_t>(127 - scale_shift(base)) << 23);
}

NF12_INLINE uint16_t finish_output(float sum, float scale, const uint16_t* bias, int64_t column) {
  const float offset = bias == nullptr ? 0.0f : bf16_to_float(bias[column]);
  return float_to_bf16(__builtin_fmaf(sum, scale, offset));
}

}  // namespace nf12::cpu
