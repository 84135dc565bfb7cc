#include <cstring>

#include "csrc/cpu/pack_kernels.hpp"

namespace nf12::cpu {
namespace {

int survey_tile(const uint16_t* w, int64_t row_stride, int base, ExponentSurvey* survey) {
  int escapes = 0;
  for (int row = 0; row < kTileRows; ++row, w += row_stride) {
    for (int column = 0; column < kTileColumns; ++column) {
      survey_weight(w[column], survey);
      escapes += !in_window(w[column], base);
    }
  }
  return escapes;
}

void encode_tile(const uint16_t* w, int64_t row_stride, int base, uint8_t* tile,
                 uint64_t* escape_columns) {
  for (int row = 0; row < kTileRows; ++row, w += row_stride) {
    uint32_t code_words[kTileColumns / 8] = {};
    escape_columns[row] = 0;
    for (int column = 0; column < kTileColumns; ++column) {
      const uint16_t bits = w[column];
      const bool is_coded = in_window(bits, base);
      const uint32_t code = is_coded ? static_cast<uint32_t>(biased_exponent(bits) - base) : 0;
      code_words[column / 8] |= code << code_bit(column);
      escape_columns[row] |= uint64_t{!is_coded} << column;
      tile[sign_mantissa_byte(row, column)] =
          static_cast<uint8_t>(is_coded ? (bits >> 8 & 0x80) | (bits & 0x7F) : 0);
    }
    std::memcpy(tile + code_word_byte(row, 0), code_words, sizeof(code_words));
  }
}

}  // namespace

const PackKernels kPackPortable{survey_tile, encode_tile};

}  // namespace nf12::cpu
