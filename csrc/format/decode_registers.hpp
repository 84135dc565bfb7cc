// The same decoding as decode.hpp for a GPU lane: four weights in seven operations.
//
//   signs    = sign_mantissa & 0x80808080 | 0x38383838     four upper bytes, but for the codes
//   pair     = bytes of sign_mantissa and signs, paired    bit 7 of each half still holds the sign
//   bf16x2   = bits of the aligned codes in 0x07800780, of pair elsewhere
//
// The spare sign at bit 7 needs no masking, because the merge overwrites it with a code bit. Where
// each pair is masked on its own (decode_pair) the same four weights cost eight.
#pragma once
#include "csrc/format/decode.hpp"

namespace nf12 {

inline constexpr uint32_t kExponentBytes = 0x38383838u;  // an instruction holds one literal

struct DecodeConstants {
  uint32_t sign = arch::in_register(0x80808080u);
  uint32_t code = arch::in_register(kCodeMask);
};

// Columns 4q .. 4q+3 of an eight-column code word: q is 0 or 1.
template <int q>
NF12_DEVICE void decode_quad(uint32_t sign_mantissa, uint32_t code_word,
                             const DecodeConstants& mask, uint32_t* bf16x2) {
  const uint32_t signs = arch::and_or(sign_mantissa, mask.sign, kExponentBytes);
  const uint32_t even = arch::permute_bytes<0, 4, 1, 5>(sign_mantissa, signs);
  const uint32_t odd = arch::permute_bytes<2, 6, 3, 7>(sign_mantissa, signs);
  bf16x2[0] = arch::merge_bits(mask.code, align_codes(code_word, 2 * q), even);
  bf16x2[1] = arch::merge_bits(mask.code, align_codes(code_word, 2 * q + 1), odd);
}

// All columns of a code word: of two words of sign-mantissa, to four words.
NF12_DEVICE void decode_eight(const uint32_t* sign_mantissa, uint32_t code_word,
                              const DecodeConstants& mask, uint32_t* bf16x2) {
  decode_quad<0>(sign_mantissa[0], code_word, mask, bf16x2);
  decode_quad<1>(sign_mantissa[1], code_word, mask, bf16x2 + 2);
}

}  // namespace nf12
