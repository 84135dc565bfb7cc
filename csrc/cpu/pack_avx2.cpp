// Thirty-two weights to a register, as bytes: exponents in one, signs and mantissas in another.
#include <immintrin.h>

#include "csrc/cpu/pack_kernels.hpp"

namespace nf12::cpu {
namespace {

struct Weights32 {
  __m256i exponent;       // bytes, in order
  __m256i sign_mantissa;  // bytes, in order
};

// Two vectors of 16-bit lanes, each below 256, to one of bytes in the same order.
NF12_INLINE __m256i narrow(__m256i low, __m256i high) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xD8);
}

NF12_INLINE Weights32 load_32(const uint16_t* w) {
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
  const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w) + 1);
  const __m256i low_byte = _mm256_set1_epi16(0xFF);
  const __m256i low = narrow(_mm256_and_si256(first, low_byte), _mm256_and_si256(second, low_byte));
  const __m256i high = narrow(_mm256_srli_epi16(first, 8), _mm256_srli_epi16(second, 8));
  const __m256i lowest_exponent_bit =
      _mm256_and_si256(_mm256_srli_epi16(low, 7), _mm256_set1_epi8(1));
  const __m256i sign = _mm256_set1_epi8(static_cast<char>(0x80));
  return {_mm256_or_si256(_mm256_add_epi8(high, high), lowest_exponent_bit),
          _mm256_or_si256(_mm256_and_si256(high, sign), _mm256_andnot_si256(sign, low))};
}

NF12_INLINE __m256i is_coded(__m256i code) {
  return _mm256_cmpeq_epi8(_mm256_min_epu8(code, _mm256_set1_epi8(kWindow - 1)), code);
}

NF12_INLINE uint32_t byte_mask(__m256i mask) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(mask));
}

NF12_INLINE uint64_t sum_bytes(__m256i bytes) {
  const __m256i sums = _mm256_sad_epu8(bytes, _mm256_setzero_si256());
  const __m128i halves =
      _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(halves) + _mm_extract_epi64(halves, 1));
}

// Adds how many of the 1,024 code bytes equal each of first .. first + 7. A byte lane counts to 32.
NF12_INLINE void count_codes(const __m256i* codes, int first, uint64_t* counts) {
  constexpr int kBins = 8;
  __m256i bins[kBins], bin_code[kBins];
  for (int i = 0; i < kBins; ++i) {
    bins[i] = _mm256_setzero_si256();
    bin_code[i] = _mm256_set1_epi8(static_cast<char>(first + i));
  }
  for (int v = 0; v < kTileWeights / 32; ++v) {
    for (int i = 0; i < kBins; ++i) {
      bins[i] = _mm256_sub_epi8(bins[i], _mm256_cmpeq_epi8(codes[v], bin_code[i]));
    }
  }
  for (int i = 0; i < kBins; ++i) counts[first + i] += sum_bytes(bins[i]);
}

// The weights inside the window are counted by comparison, a scalar histogram would take four times
// as long; those outside are few and go one by one.
int survey_tile(const uint16_t* w, int64_t row_stride, int base, ExponentSurvey* survey) {
  const __m256i base_byte = _mm256_set1_epi8(static_cast<char>(base));
  __m256i codes[kTileWeights / 32];
  int escapes = 0;
  for (int v = 0; v < kTileWeights / 32; ++v) {
    const uint16_t* source = w + v / 2 * row_stride + v % 2 * 32;
    codes[v] = _mm256_sub_epi8(load_32(source).exponent, base_byte);
    uint32_t outside = ~byte_mask(is_coded(codes[v]));
    escapes += __builtin_popcount(outside);
    for (; outside != 0; outside &= outside - 1) {
      survey_weight(source[__builtin_ctz(outside)], survey);
    }
  }
  count_codes(codes, 0, survey->counts + base);
  count_codes(codes, 8, survey->counts + base);
  return escapes;
}

// Two code bytes of a pair of even (or odd) columns become one: bytes of a word in storage order.
NF12_INLINE __m256i join_nibbles(__m256i code) {
  const __m256i evens_then_odds =
      _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15,  //
                       0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  return _mm256_maddubs_epi16(_mm256_shuffle_epi8(code, evens_then_odds),
                              _mm256_set1_epi16(0x1001));
}

void encode_tile(const uint16_t* w, int64_t row_stride, int base, uint8_t* tile,
                 uint64_t* escape_columns) {
  const __m256i base_byte = _mm256_set1_epi8(static_cast<char>(base));
  for (int row = 0; row < kTileRows; ++row, w += row_stride) {
    auto* sign_mantissa = reinterpret_cast<__m256i*>(tile + sign_mantissa_byte(row, 0));
    __m256i nibbles[2];
    uint32_t outside[2];
    for (int half = 0; half < 2; ++half) {
      const Weights32 weights = load_32(w + 32 * half);
      const __m256i code = _mm256_sub_epi8(weights.exponent, base_byte);
      const __m256i coded = is_coded(code);
      outside[half] = ~byte_mask(coded);
      nibbles[half] = join_nibbles(_mm256_and_si256(code, coded));
      _mm256_storeu_si256(sign_mantissa + half, _mm256_and_si256(weights.sign_mantissa, coded));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(tile + code_word_byte(row, 0)),
                        narrow(nibbles[0], nibbles[1]));
    escape_columns[row] = uint64_t{outside[1]} << 32 | outside[0];
  }
}

}  // namespace

const PackKernels kPackAvx2{survey_tile, encode_tile};

}  // namespace nf12::cpu
