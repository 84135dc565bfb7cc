// The side table: every weight whose exponent lies outside the window.
//
//   index word of a tile     bits 0..7 count | bits 8..31 quad (offset into escapes, 16 bytes each)
//     count 0                clean tile, the whole word is 0
//     count 1..64            that many entries from escapes[4 * quad], the last quad filled with 0
//     count 255              raw tile: 128 quads hold 1,024 BF16 values row-major, two to an entry
//   entry of a listed tile   bits 16..25 position 64 r + c | bits 0..15 BF16 bits of w * 2^s
//
// Entries ascend strictly. An escape replaces the decoded weight before it is multiplied; as a
// correction added later it would break for Inf, NaN and exact zeros.
#pragma once
#include "csrc/format/layout.hpp"

namespace nf12 {

inline constexpr int kMaxListed = 64;  // a longer list costs more than the tile it patches
inline constexpr uint32_t kRawCount = 255;
inline constexpr int kEntriesPerQuad = 4;
inline constexpr int kRawQuads = kTileWeights / 2 / kEntriesPerQuad;
inline constexpr uint32_t kMaxQuads = 1u << 24;
static_assert(kRawQuads == 128);

struct IndexWord {
  uint32_t count;
  uint32_t quad;

  NF12_INLINE static constexpr IndexWord from_bits(uint32_t word) {
    return {word & 0xFF, word >> 8};
  }
  NF12_INLINE constexpr uint32_t bits() const { return quad << 8 | count; }
  NF12_INLINE constexpr bool is_raw() const { return count == kRawCount; }
  NF12_INLINE constexpr bool is_listed() const { return count - 1u < kMaxListed; }
  NF12_INLINE constexpr uint32_t quads() const {
    return is_raw() ? kRawQuads : (count + kEntriesPerQuad - 1) / kEntriesPerQuad;
  }
  // Whether the table really holds what the word names: kernels skip a word that fails, so that
  // unchecked input cannot make them read outside the table.
  NF12_INLINE constexpr bool is_inside(uint32_t table_quads) const {
    return (is_raw() || is_listed()) && quad <= table_quads && quads() <= table_quads - quad;
  }
};

struct Escape {
  uint32_t position;  // 64 r + c
  uint16_t value;     // BF16 bits of w * 2^s

  NF12_INLINE static constexpr Escape from_bits(uint32_t entry) {
    return {entry >> 16 & 0x3FF, static_cast<uint16_t>(entry)};
  }
  NF12_INLINE constexpr uint32_t bits() const { return position << 16 | value; }
};

}  // namespace nf12
