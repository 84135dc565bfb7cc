// Decoding the payload: two weights in four integer operations, one weight for readers of the code.
//
//   Of a pair (columns 2i, 2i+1), low half the even column:
//     bytes   = sign_mantissa[even] | sign_mantissa[odd] << 8
//     dup     = each byte twice                              (v_perm_b32 / prmt / pshufb)
//     codes   = code word shifted so that both codes start at bit 7 of their half
//     bf16x2  = dup & 0x807F807F | 0x38003800 | codes & 0x07800780
//   The constant 0x3800 is exponent 112: the result is w * 2^s whatever the tensor's base.
#pragma once
#include "csrc/format/layout.hpp"

namespace nf12 {

inline constexpr uint32_t kSignMantissaMask = 0x807F807Fu;
inline constexpr uint32_t kCodeMask = 0x07800780u;
inline constexpr uint32_t kExponentBias = 0x38003800u;  // kNeutralBase << 7 in both halves
static_assert(kExponentBias == (kNeutralBase << 7 | kNeutralBase << 23));

// Moves the codes of pair `pair` (0..3) of a code word to bit 7 of each 16-bit half.
NF12_INLINE constexpr uint32_t align_codes(uint32_t code_word, int pair) {
  return pair < 2 ? code_word << (7 - 4 * pair) : code_word >> (4 * pair - 7);
}

// `duplicated` holds the pair's two sign-mantissa bytes, each twice: e e o o from the low end.
NF12_INLINE constexpr uint32_t decode_pair(uint32_t duplicated, uint32_t code_word, int pair) {
  return (align_codes(code_word, pair) & kCodeMask) |
         ((duplicated & kSignMantissaMask) | kExponentBias);
}

// The same pair as w itself: no half carries, since base + code <= 143.
NF12_INLINE constexpr uint32_t decode_pair_exact(uint32_t duplicated, uint32_t code_word, int pair,
                                                 int base) {
  return (align_codes(code_word, pair) & kCodeMask) + (duplicated & kSignMantissaMask) +
         static_cast<uint32_t>(base) * 0x00800080u;
}

// BF16 bits of w * 2^s of one weight that is not an escape.
NF12_INLINE constexpr uint16_t decode_weight(uint8_t sign_mantissa, uint32_t code) {
  return static_cast<uint16_t>((sign_mantissa & 0x80) << 8 | (kNeutralBase + code) << 7 |
                               (sign_mantissa & 0x7F));
}
static_assert(decode_weight(0, 0) == 0x3800 && decode_weight(0xFF, 15) == 0xBFFF);
static_assert(decode_pair(0x7F7F8080u, 0x000F0000u, 0) == 0x3FFFB800u);
static_assert(decode_pair_exact(0x7F7F8080u, 0x000F0000u, 0, 112) == 0x3FFFB800u);
static_assert(decode_pair_exact(0xFFFF0000u, 0x000F000Fu, 0, 128) == 0xC7FF4780u);

}  // namespace nf12
