// Multiplying BF16 by a power of two on its bits: how an escape w becomes w * 2^s in the side table
// and comes back. Integer arithmetic, so that neither rounding modes nor flush-to-zero reach it.
#pragma once
#include <bit>
#include <cstdint>

#include "csrc/format/layout.hpp"

namespace nf12 {

inline constexpr int kInfExponent = 255;

NF12_INLINE constexpr int biased_exponent(uint16_t bits) { return bits >> 7 & 0xFF; }
NF12_INLINE constexpr bool in_window(uint16_t bits, int base) {
  return static_cast<uint32_t>(biased_exponent(bits) - base) < static_cast<uint32_t>(kWindow);
}

// The rare half of scale_by: zeros, subnormals, Inf, NaN, and results that leave the normal range.
NF12_INLINE constexpr uint16_t scale_by_rare(uint16_t bits, int shift) {
  const uint32_t sign = bits & 0x8000;
  int exponent = biased_exponent(bits);
  uint32_t significand = bits & 0x7F;
  if (exponent == kInfExponent || (exponent == 0 && significand == 0)) return bits;
  if (exponent == 0) {  // subnormal: move its highest bit up to where a normal weight has it
    const int up = std::countl_zero(significand) - 24;
    significand <<= up;
    exponent = 1 - up;
  }
  significand |= 0x80;
  exponent += shift;
  if (exponent >= kInfExponent) return static_cast<uint16_t>(sign | kInfExponent << 7);
  if (exponent >= 1) {
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent) << 7 |
                                 (significand & 0x7F));
  }
  const int down = 1 - exponent;
  return static_cast<uint16_t>(sign | (down < 8 ? significand >> down : 0));
}

// bits * 2^shift, |shift| <= 16. Zeros, Inf and NaN stay as they are; what does not fit is cut off,
// so that scales_exactly can tell.
NF12_INLINE constexpr uint16_t scale_by(uint16_t bits, int shift) {
  const int exponent = biased_exponent(bits);
  const int scaled = exponent + shift;
  if (exponent >= 1 && exponent < kInfExponent && scaled >= 1 && scaled < kInfExponent) {
    return static_cast<uint16_t>(bits + shift * 128);
  }
  return scale_by_rare(bits, shift);
}

// Raw tiles: at base 112, where most of them are, there is nothing to do.
NF12_INLINE constexpr void scale_all(uint16_t* values, int count, int shift) {
  if (shift == 0) return;
  for (int i = 0; i < count; ++i) values[i] = scale_by(values[i], shift);
}

NF12_INLINE constexpr bool scales_exactly(uint16_t bits, int shift) {
  return shift == 0 || scale_by(scale_by(bits, shift), -shift) == bits;
}

static_assert(scale_by(0x3F80, -16) == 0x3780 && scale_by(0x8000, 16) == 0x8000);
static_assert(scale_by(0x0001, 7) == 0x0080 && scale_by(0x0080, -7) == 0x0001);
static_assert(scale_by(0x0040, 1) == 0x0080 && scale_by(0xFFC1, 3) == 0xFFC1);
static_assert(!scales_exactly(0x0001, -1) && scales_exactly(0x0002, -1));
static_assert(!scales_exactly(0x7F7F, 1) && scales_exactly(0x7F80, 16));

}  // namespace nf12
