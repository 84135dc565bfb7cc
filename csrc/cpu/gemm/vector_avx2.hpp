// AVX2 + FMA: what the loop nests of fused.hpp and blocked.hpp need of an instruction set.
//
// Decoding leaves a row's columns in "lane order". One register takes 16 weights of 32 columns:
// every 128-bit lane covers 16 columns, which are two code words, and holds two pairs of each of
// them.
//
//   register j of a half  | lane 0                                | lane 1
//   pairs of columns      | 4j 4j+1  4j+2 4j+3  8+4j ..  10+4j .. | 16 + the same
//
// so 4 neighbouring columns stay together: lane order moves 8-byte pieces of a row, nothing
// smaller.
#pragma once
#include <immintrin.h>

#include "csrc/cpu/gemm/epilogue.hpp"
#include "csrc/cpu/gemm/unroll.hpp"
#include "csrc/format/decode.hpp"

namespace nf12::cpu {
namespace {

struct Avx2 {
  using Pairs = __m256i;  // 8 pairs of BF16 weights of one row
  using Sum = __m256;
  using X = float;  // fused: per register of pairs, the 8 even columns, then the 8 odd ones
  static constexpr int kPairLanes = 8;
  static constexpr int kHalves = 2;  // registers of one row: kHalves x 2
  static constexpr int kMaxFusedTokens = 3;

  // Register j (0, 1) of half h of a row: columns 32h + 16 (lane) + 4j + {0..3, 8..11}.
  NF12_INLINE static void decode(const uint8_t* tile, int row, int half, Pairs (&w)[2]) {
    const __m256i bytes = _mm256_loadu_si256(
        reinterpret_cast<const __m256i*>(tile + sign_mantissa_byte(row, 32 * half)));
    const __m256i words = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(tile + code_word_byte(row, 32 * half))));
    // Each code word twice, for its pairs 2j and 2j+1.
    const __m256i codes =
        _mm256_castps_si256(_mm256_permutevar_ps(_mm256_castsi256_ps(words), twice()));
    const __m256i sign_mantissa = _mm256_set1_epi32(static_cast<int>(kSignMantissaMask));
    const __m256i exponent = _mm256_set1_epi32(kExponentBias);
    const __m256i code = _mm256_set1_epi32(kCodeMask);
    const __m256i aligned[2] = {_mm256_sllv_epi32(codes, _mm256_set1_epi64x(3ll << 32 | 7)),
                                _mm256_srlv_epi32(codes, _mm256_set1_epi64x(5ll << 32 | 1))};
    for (int j = 0; j < 2; ++j) {
      const __m256i dup = _mm256_shuffle_epi8(bytes, duplicate(j));
      w[j] = _mm256_or_si256(_mm256_or_si256(_mm256_and_si256(dup, sign_mantissa), exponent),
                             _mm256_and_si256(aligned[j], code));
      // Else GCC takes the mask of odd() apart into one for each term: an operation more a pair.
      __asm__("" : "+x"(w[j]));
    }
  }

  NF12_INLINE static Pairs load(const void* p) {
    return _mm256_load_si256(static_cast<const __m256i*>(p));
  }
  NF12_INLINE static void store(void* p, Pairs w) {
    _mm256_store_si256(static_cast<__m256i*>(p), w);
  }

  // Half h of a row of 64 activations, in the order of decode().
  NF12_INLINE static void load_lane_order(const uint16_t* row, int half, Pairs (&x)[2]) {
    const auto* p = reinterpret_cast<const __m256i*>(row + 32 * half);
    const __m256i a = _mm256_loadu_si256(p), b = _mm256_loadu_si256(p + 1);
    const __m256i low = _mm256_permute2x128_si256(a, b, 0x20);
    const __m256i high = _mm256_permute2x128_si256(a, b, 0x31);
    x[0] = _mm256_unpacklo_epi64(low, high);
    x[1] = _mm256_unpackhi_epi64(low, high);
  }

  NF12_INLINE static __m256 even(Pairs w) { return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)); }
  NF12_INLINE static __m256 odd(Pairs w) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(w, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }

  NF12_INLINE static Sum zero() { return _mm256_setzero_ps(); }
  NF12_INLINE static Sum multiply_add(Pairs w, const X* x, Sum sum) {
    sum = _mm256_fmadd_ps(even(w), _mm256_load_ps(x), sum);
    return _mm256_fmadd_ps(odd(w), _mm256_load_ps(x + 8), sum);
  }
  NF12_INLINE static float total(Sum sum) {
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
  }

  NF12_INLINE static void store_x(X* out, Pairs x) {
    _mm256_store_ps(out, even(x));
    _mm256_store_ps(out + 8, odd(x));
  }

  // Rows along a register, for blocked.hpp: one step is one column.
  using W = float;
  using Rows = __m256;
  static constexpr int kRowLanes = 8;
  static constexpr int kSteps = kTileColumns;
  static constexpr int kTokens = 6;  // 12 registers of sums, 2 of rows, 1 of x: 15 of 16

  NF12_INLINE static Rows load_rows(const W* p) { return _mm256_load_ps(p); }
  NF12_INLINE static Sum load_sum(const float* p) { return _mm256_load_ps(p); }
  NF12_INLINE static void store_sum(float* p, Sum sum) { _mm256_store_ps(p, sum); }
  NF12_INLINE static Sum multiply_add_rows(Rows rows, const X* x, int step, Sum sum) {
    return _mm256_fmadd_ps(rows, _mm256_broadcast_ss(x + step), sum);
  }
  NF12_INLINE static void expand_x(const uint16_t* row, X* out) {
    for (int i = 0; i < kTileColumns; ++i) out[i] = bf16_to_float(row[i]);
  }
  NF12_INLINE static void put(W* panel, int row, int column, uint16_t bits) {
    panel[kTileRows * column + row] = bf16_to_float(bits);
  }

  // Both planes are turned as they are, four bytes at a time; a register then holds 4 columns'
  // bytes or 8 columns' codes of 8 rows, and decodes to a pair of columns of them.
  NF12_INLINE static void decode_panel(const uint8_t* tile, W* panel) {
    for (int row = 0; row < kTileRows; row += 8, panel += 8) {
      alignas(32) __m256i codes[8];
      load_turned(tile + code_word_byte(row, 0), kTileColumns / 2, codes);
      for (int half = 0; half < 2; ++half) {
        alignas(32) __m256i bytes[8];
        load_turned(tile + sign_mantissa_byte(row, 32 * half), kTileColumns, bytes);
        W* out = panel + kTileRows * 32 * half;
#pragma GCC unroll 1
        for (int word = 0; word < 4; ++word, out += kTileRows * 8) {
          decode_word(bytes[2 * word], bytes[2 * word + 1], codes[4 * half + word], out);
        }
      }
    }
  }

  NF12_INLINE static void transpose_square(Pairs (&w)[8]) {
    __m256i a[8], b[8];
    NF12_UNROLL_REGISTERS for (int i = 0; i < 8; i += 2) {
      a[i] = _mm256_unpacklo_epi32(w[i], w[i + 1]);
      a[i + 1] = _mm256_unpackhi_epi32(w[i], w[i + 1]);
    }
    NF12_UNROLL_REGISTERS for (int i = 0; i < 8; i += 4) {
      b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
      b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
      b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
      b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    NF12_UNROLL_REGISTERS for (int i = 0; i < 4; ++i) {
      w[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
      w[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
  }

 private:
  // Eight rows of 32 bytes, turned: register i holds dword i of each.
  NF12_INLINE static void load_turned(const uint8_t* p, int stride_bytes, __m256i (&w)[8]) {
    NF12_UNROLL_REGISTERS for (int i = 0; i < 8; ++i) {
      w[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i * stride_bytes));
    }
    transpose_square(w);
  }

  // The 8 columns of a code word, of 8 rows.
  NF12_INLINE static void decode_word(__m256i bytes_low, __m256i bytes_high, __m256i codes,
                                      W* out) {
    const __m256i sign_mantissa = _mm256_set1_epi32(static_cast<int>(kSignMantissaMask));
    const __m256i exponent = _mm256_set1_epi32(kExponentBias);
    const __m256i code = _mm256_set1_epi32(kCodeMask);
    const __m256i aligned[4] = {_mm256_slli_epi32(codes, 7), _mm256_slli_epi32(codes, 3),
                                _mm256_srli_epi32(codes, 1), _mm256_srli_epi32(codes, 5)};
    NF12_UNROLL_REGISTERS for (int pair = 0; pair < 4; ++pair) {
      const __m256i dup = _mm256_shuffle_epi8(pair < 2 ? bytes_low : bytes_high,
                                              pair % 2 == 0 ? first_pair() : second_pair());
      __m256i w = _mm256_or_si256(_mm256_or_si256(_mm256_and_si256(dup, sign_mantissa), exponent),
                                  _mm256_and_si256(aligned[pair], code));
      __asm__("" : "+x"(w));  // as in decode()
      _mm256_store_ps(out + kTileRows * 2 * pair, even(w));
      _mm256_store_ps(out + kTileRows * (2 * pair + 1), odd(w));
    }
  }
  // Of each dword: bytes 0 0 1 1, bytes 2 2 3 3.
  NF12_INLINE static __m256i first_pair() {
    return _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13));
  }
  NF12_INLINE static __m256i second_pair() {
    return _mm256_broadcastsi128_si256(
        _mm_setr_epi8(2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15));
  }
  NF12_INLINE static __m256i twice() { return _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3); }
  NF12_INLINE static __m256i duplicate(int j) {
    const char c = static_cast<char>(4 * j);
    return _mm256_broadcastsi128_si256(_mm_add_epi8(
        _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 8, 8, 9, 9, 10, 10, 11, 11), _mm_set1_epi8(c)));
  }
};

}  // namespace
}  // namespace nf12::cpu
