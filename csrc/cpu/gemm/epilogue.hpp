// From an FP32 sum to a BF16 output: y = bf16(fma(acc, 2^-s, bias)).
#pragma once
#include <cstring>

#include "csrc/cpu/cpu.hpp"

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

NF12_INLINE float bf16_to_float(uint16_t bits) {
  return bits_float(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest, ties to even. A NaN is cut and made quiet instead: rounding could carry its
// mantissa into the exponent's end and return Inf, or cut it to nothing.
NF12_INLINE uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  const uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
  return static_cast<uint16_t>(is_nan ? bits >> 16 | 0x40 : rounded >> 16);
}

// 2^-s: exact, since |s| <= 16.
NF12_INLINE float output_scale(int base) {
  return bits_float(static_cast<uint32_t>(127 - scale_shift(base)) << 23);
}

// The lines of y that finish_row_block will write, asked for while the sums are still being made:
// each token's outputs lie in a page of their own (cold, 2-core AVX2: 2 % of m = 8, 3 % of m = 64).
NF12_INLINE void prefetch_outputs(const GemmArgs& args, int64_t r, int64_t t0, int64_t tokens) {
  const uint16_t* y = args.y + t0 * args.y_row_stride + r * kTileRows;
  for (int64_t t = 0; t < tokens; ++t, y += args.y_row_stride) __builtin_prefetch(y, 1);
}

// Row block r of y for the tokens t0 .. t0 + tokens - 1, from sums [tokens, 16]. The rows of the
// last block beyond n are not stored.
NF12_INLINE void finish_row_block(const GemmArgs& args, int64_t r, int64_t t0, int64_t tokens,
                                  const float* sums) {
  const int64_t first = r * kTileRows;
  const int64_t rows = args.w.n - first < kTileRows ? args.w.n - first : kTileRows;
  const float scale = output_scale(args.w.base);
  float offset[kTileRows] = {};
  if (args.bias != nullptr) {
    for (int64_t i = 0; i < rows; ++i) offset[i] = bf16_to_float(args.bias[first + i]);
  }
  for (int64_t t = 0; t < tokens; ++t, sums += kTileRows) {
    uint16_t out[kTileRows];
    for (int i = 0; i < kTileRows; ++i) {
      out[i] = float_to_bf16(__builtin_fmaf(sums[i], scale, offset[i]));
    }
    std::memcpy(args.y + (t0 + t) * args.y_row_stride + first, out,
                static_cast<size_t>(rows) * sizeof(uint16_t));
  }
}

}  // namespace nf12::cpu
