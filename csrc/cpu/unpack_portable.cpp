#include <cstring>

#include "csrc/cpu/unpack_kernels.hpp"
#include "csrc/format/decode.hpp"

namespace nf12::cpu {
namespace {

void decode_row(const uint8_t* tile, int row, int base, uint16_t* out) {
  const uint8_t* sign_mantissa = tile + sign_mantissa_byte(row, 0);
  uint32_t code_words[kTileColumns / 8];
  std::memcpy(code_words, tile + code_word_byte(row, 0), sizeof(code_words));
  uint32_t pairs[kTileColumns / 2];
  for (int i = 0; i < kTileColumns / 2; ++i) {
    const uint32_t duplicated =
        sign_mantissa[2 * i] * 0x0101u | sign_mantissa[2 * i + 1] * 0x01010000u;
    pairs[i] = decode_pair_exact(duplicated, code_words[i / 4], i % 4, base);
  }
  std::memcpy(out, pairs, sizeof(pairs));
}

void decode_tile(const uint8_t* tile, int base, uint16_t* out, int64_t out_row_stride) {
  for (int row = 0; row < kTileRows; ++row) {
    decode_row(tile, row, base, out + row * out_row_stride);
  }
}

}  // namespace

const UnpackKernels kUnpackPortable{decode_tile, decode_row};

}  // namespace nf12::cpu
