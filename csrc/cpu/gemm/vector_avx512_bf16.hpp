// AVX-512-BF16 multiplies pairs as they are (vdpbf16ps): two products a lane an instruction, summed
// in FP32, and no conversion. The instruction takes subnormal inputs as zeros and flushes subnormal
// sums, whatever MXCSR says; the levels below do neither.
#pragma once
#include "csrc/cpu/gemm/vector_avx512.hpp"

namespace nf12::cpu {
namespace {

struct Avx512Bf16 : Avx512Pairs {
  using X = uint16_t;  // BF16; fused: in lane order
  static constexpr int kMaxFusedTokens = 8;

  NF12_INLINE static Sum multiply_add(Pairs w, const X* x, Sum sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w),
                            reinterpret_cast<__m512bh>(_mm512_load_si512(x)));
  }
  NF12_INLINE static void store_x(X* out, Pairs x) { _mm512_store_si512(out, x); }

  using W = uint32_t;
  using Rows = __m512i;
  static constexpr int kSteps = kTileColumns / 2;  // one pair of columns each
  static constexpr int kTokens = 16;
  NF12_INLINE static Rows load_rows(const W* p) { return _mm512_load_si512(p); }
  NF12_INLINE static Sum multiply_add_rows(Rows rows, const X* x, int step, Sum sum) {
    int pair;
    __builtin_memcpy(&pair, x + 2 * step, sizeof pair);
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(rows),
                            reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)));
  }
  NF12_INLINE static void expand_x(const uint16_t* row, X* out) {
    std::memcpy(out, row, kTileColumns * sizeof *out);
  }
  NF12_INLINE static void put(W* panel, int row, int column, uint16_t bits) {
    W& pair = panel[kTileRows * (column / 2) + row];
    pair = column % 2 == 0 ? (pair & 0xFFFF0000) | bits : (pair & 0xFFFF) | W{bits} << 16;
  }
  NF12_INLINE static void decode_panel(const uint8_t* tile, W* panel) {
    decode_pairs(tile,
                 [panel](int pair, Pairs w) { _mm512_store_si512(panel + kTileRows * pair, w); });
  }
};

}  // namespace
}  // namespace nf12::cpu
