// AVX-512 (F, BW, VL, DQ): the counterpart of vector_avx2.hpp, with a whole row of a tile in two
// registers.
#pragma once
#include <immintrin.h>

#include "csrc/cpu/gemm/epilogue.hpp"
#include "csrc/cpu/gemm/unroll.hpp"
#include "csrc/format/decode.hpp"

namespace nf12::cpu {
namespace {

NF12_INLINE void transpose_16x16(__m512i (&w)[16]) {
  __m512i a[16], b[16];
  NF12_UNROLL_REGISTERS for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(w[i], w[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(w[i], w[i + 1]);
  }
  // b[4i + c]: rows 4i..4i+3 of the columns c, 4 + c, 8 + c, 12 + c, one to a lane
  NF12_UNROLL_REGISTERS for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  NF12_UNROLL_REGISTERS for (int c = 0; c < 4; ++c) {
    const __m512i even_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xDD);
    const __m512i even_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xDD);
    w[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    w[8 + c] = _mm512_shuffle_i32x4(even_low, even_high, 0xDD);
    w[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    w[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xDD);
  }
}

// What this level and AVX-512-BF16 share: pairs in lane order.
struct Avx512Pairs {
  using Pairs = __m512i;  // 16 pairs of BF16 weights of one row
  using Sum = __m512;
  static constexpr int kPairLanes = 16;
  static constexpr int kHalves = 1;

  // Register j (0, 1) of a row: columns 16 (lane) + 4j + {0..3, 8..11}.
  NF12_INLINE static void decode(const uint8_t* tile, int row, int, Pairs (&w)[2]) {
    const __m512i bytes = _mm512_loadu_si512(tile + sign_mantissa_byte(row, 0));
    const __m512i words = _mm512_castsi256_si512(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + code_word_byte(row, 0))));
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i codes = _mm512_permutexvar_epi32(twice, words);
    // Pairs 2j and 2j+1 to bit 7: rotations left by 7, 3, -1, -5.
    const __m512i aligned[2] = {_mm512_rolv_epi32(codes, _mm512_set1_epi64(3ll << 32 | 7)),
                                _mm512_rolv_epi32(codes, _mm512_set1_epi64(27ll << 32 | 31))};
    constexpr int kMaskThenOr = 0xEA;  // (a & b) | c
    for (int j = 0; j < 2; ++j) {
      const __m512i dup = _mm512_shuffle_epi8(bytes, duplicate(j));
      const __m512i without_code =
          _mm512_ternarylogic_epi32(dup, _mm512_set1_epi32(static_cast<int>(kSignMantissaMask)),
                                    _mm512_set1_epi32(kExponentBias), kMaskThenOr);
      w[j] = _mm512_ternarylogic_epi32(aligned[j], _mm512_set1_epi32(kCodeMask), without_code,
                                       kMaskThenOr);
    }
  }

  // A row of 64 activations, in the order of decode().
  NF12_INLINE static void load_lane_order(const uint16_t* row, int, Pairs (&x)[2]) {
    const __m512i a = _mm512_loadu_si512(row), b = _mm512_loadu_si512(row + 32);
    x[0] = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), b);
    x[1] = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), b);
  }

  NF12_INLINE static Pairs load(const void* p) { return _mm512_load_si512(p); }
  NF12_INLINE static void store(void* p, Pairs w) { _mm512_store_si512(p, w); }

  NF12_INLINE static Sum zero() { return _mm512_setzero_ps(); }
  NF12_INLINE static float total(Sum sum) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
  }

  static constexpr int kRowLanes = 16;
  NF12_INLINE static Sum load_sum(const float* p) { return _mm512_load_ps(p); }
  NF12_INLINE static void store_sum(float* p, Sum sum) { _mm512_store_ps(p, sum); }
  NF12_INLINE static void transpose_square(Pairs (&w)[16]) { transpose_16x16(w); }

  // use(pair, w) for the pairs of columns 0 1, 2 3, ... of a tile, all 16 rows in a register. Both
  // planes are turned as they are, four bytes at a time.
  template <class Use>
  NF12_INLINE static void decode_pairs(const uint8_t* tile, Use use) {
    alignas(64) Pairs codes[16], bytes[16];
    NF12_UNROLL_REGISTERS for (int row = 0; row < kTileRows; ++row) {
      codes[row] = _mm512_castsi256_si512(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + code_word_byte(row, 0))));
    }
    transpose_16x16(codes);  // the upper 8 columns of the square are not used
    NF12_UNROLL_REGISTERS for (int row = 0; row < kTileRows; ++row) {
      bytes[row] = _mm512_loadu_si512(tile + sign_mantissa_byte(row, 0));
    }
    transpose_16x16(bytes);
    NF12_UNROLL_REGISTERS for (int word = 0; word < kTileColumns / 8; ++word) {
      const Pairs aligned[4] = {_mm512_rol_epi32(codes[word], 7), _mm512_rol_epi32(codes[word], 3),
                                _mm512_ror_epi32(codes[word], 1), _mm512_ror_epi32(codes[word], 5)};
      NF12_UNROLL_REGISTERS for (int pair = 0; pair < 4; ++pair) {
        const __m512i dup = _mm512_shuffle_epi8(bytes[2 * word + pair / 2], pair_bytes(pair % 2));
        use(4 * word + pair, merge(dup, aligned[pair]));
      }
    }
  }

 private:
  NF12_INLINE static Pairs merge(__m512i dup, __m512i aligned_codes) {
    constexpr int kMaskThenOr = 0xEA;  // (a & b) | c
    const __m512i without_code =
        _mm512_ternarylogic_epi32(dup, _mm512_set1_epi32(static_cast<int>(kSignMantissaMask)),
                                  _mm512_set1_epi32(kExponentBias), kMaskThenOr);
    return _mm512_ternarylogic_epi32(aligned_codes, _mm512_set1_epi32(kCodeMask), without_code,
                                     kMaskThenOr);
  }
  // Of each dword: bytes 0 0 1 1, or 2 2 3 3.
  NF12_INLINE static __m512i pair_bytes(int which) {
    const __m128i first = _mm_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13);
    return _mm512_broadcast_i32x4(_mm_add_epi8(first, _mm_set1_epi8(which == 0 ? 0 : 2)));
  }
  NF12_INLINE static __m512i duplicate(int j) {
    const char c = static_cast<char>(4 * j);
    return _mm512_broadcast_i32x4(_mm_add_epi8(
        _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 8, 8, 9, 9, 10, 10, 11, 11), _mm_set1_epi8(c)));
  }
};

struct Avx512 : Avx512Pairs {
  using X = float;  // fused: per register of pairs, the 16 even columns, then the 16 odd ones
  // 16 cores, cold, us at m = 8, fused / blocked: 457 / 514 (4096x4096), 1594 / 1773 (4096x14336).
  static constexpr int kMaxFusedTokens = 8;

  NF12_INLINE static __m512 even(Pairs w) { return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)); }
  NF12_INLINE static __m512 odd(Pairs w) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  NF12_INLINE static Sum multiply_add(Pairs w, const X* x, Sum sum) {
    sum = _mm512_fmadd_ps(even(w), _mm512_load_ps(x), sum);
    return _mm512_fmadd_ps(odd(w), _mm512_load_ps(x + 16), sum);
  }
  NF12_INLINE static void store_x(X* out, Pairs x) {
    _mm512_store_ps(out, even(x));
    _mm512_store_ps(out + 16, odd(x));
  }

  using W = float;
  using Rows = __m512;
  static constexpr int kSteps = kTileColumns;  // one column each
  static constexpr int kTokens = 16;
  NF12_INLINE static Rows load_rows(const W* p) { return _mm512_load_ps(p); }
  NF12_INLINE static Sum multiply_add_rows(Rows rows, const X* x, int step, Sum sum) {
    return _mm512_fmadd_ps(rows, _mm512_set1_ps(x[step]), sum);
  }
  NF12_INLINE static void expand_x(const uint16_t* row, X* out) {
    for (int i = 0; i < kTileColumns; ++i) out[i] = bf16_to_float(row[i]);
  }
  NF12_INLINE static void put(W* panel, int row, int column, uint16_t bits) {
    panel[kTileRows * column + row] = bf16_to_float(bits);
  }
  NF12_INLINE static void decode_panel(const uint8_t* tile, W* panel) {
    decode_pairs(tile, [panel](int pair, Pairs w) {
      _mm512_store_ps(panel + kTileRows * 2 * pair, even(w));
      _mm512_store_ps(panel + kTileRows * (2 * pair + 1), odd(w));
    });
  }
};

}  // namespace
}  // namespace nf12::cpu
