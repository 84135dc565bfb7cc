// The NF12 tile, version 1: where each bit of a weight lies.
//
//   W is [N, K] BF16. It is cut into super-atoms ("tiles") of 16 rows x 64 columns, and each tile
//   becomes 1,536 bytes: 12 bits a weight, in two plain row-major planes.
//
//   bytes 0..1023      sign + mantissa        1 byte a weight
//                      row r, column c        at 64 r + c          = sign << 7 | mantissa
//
//   bytes 1024..1535   exponent codes         4 bits a weight, 8 columns to a little-endian u32
//                      row r, word w          at 1024 + 32 r + 4 w covers columns 8w .. 8w+7
//
//        bit 31            24             16              8              0
//            | 7    | 5    | 3    | 1     | 6    | 4     | 2    | 0     |     column - 8w
//
//   Even columns fill the low half and odd ones the high half, so that one shift brings the codes
//   of a neighbouring pair to bit 7 of both 16-bit halves at once (decode.hpp).
//
//   code = biased exponent - base, for exponents base .. base + 15 (the "window"). Every other
//   weight is an escape (escapes.hpp); its payload bits, like all padding, are zero.
#pragma once
#include <cstddef>
#include <cstdint>

#include "csrc/arch/target.hpp"

namespace nf12 {

inline constexpr int kFormatVersion = 1;

inline constexpr int kTileRows = 16;
inline constexpr int kTileColumns = 64;
inline constexpr int kTileWeights = kTileRows * kTileColumns;
inline constexpr int kCodesOffset = kTileWeights;  // byte offset of the exponent codes in a tile
inline constexpr int kTileBytes = kTileWeights + kTileWeights / 2;
static_assert(kTileBytes == 1536);

inline constexpr int kMinBase = 96;
inline constexpr int kMaxBase = 128;
inline constexpr int kNeutralBase = 112;  // payloads decode as if the base were this one
inline constexpr int kWindow = 16;        // exponents a code can name

// ceil(n / 16) and ceil(k / 64), also for a hostile size near 2^63.
NF12_INLINE constexpr int64_t tile_rows(int64_t n) { return n / kTileRows + (n % kTileRows != 0); }
NF12_INLINE constexpr int64_t tile_columns(int64_t k) {
  return k / kTileColumns + (k % kTileColumns != 0);
}

// The payload decodes to w * 2^s with this s; a sum is scaled back by 2^-s once per output.
NF12_INLINE constexpr int scale_shift(int base) { return kNeutralBase - base; }

// Byte of the sign and mantissa of (row, column) within a tile.
NF12_INLINE constexpr int sign_mantissa_byte(int row, int column) {
  return kTileColumns * row + column;
}

// Byte of the u32 that holds the code of (row, column) within a tile.
NF12_INLINE constexpr int code_word_byte(int row, int column) {
  return kCodesOffset + kTileColumns / 2 * row + 4 * (column / 8);
}

// Lowest bit of that code within its u32.
NF12_INLINE constexpr int code_bit(int column) { return 4 * (column % 8 / 2) + 16 * (column % 2); }

static_assert(code_bit(0) == 0 && code_bit(1) == 16 && code_bit(6) == 12 && code_bit(7) == 28);
static_assert(code_word_byte(15, 63) == kTileBytes - 4);

// One packed weight [n, k], or one expert of a stack. Strides let a slice along rows or tile
// columns stay a view: tile (r, c) lies at payload + r * payload_stride_bytes + c * kTileBytes.
struct PackedView {
  const uint8_t* payload;        // [R, C, 1536]
  const uint32_t* index;         // [R, C]
  const uint32_t* escapes;       // [4 * quads], shared by all tiles and experts
  int64_t payload_stride_bytes;  // between tile rows
  int64_t index_stride;          // between tile rows, in words
  int64_t n;
  int64_t k;
  uint32_t quads;  // 16-byte quads in escapes: the bound every table read is checked against
  int32_t base;

  NF12_INLINE constexpr const uint8_t* tile(int64_t r, int64_t c) const {
    return payload + r * payload_stride_bytes + c * kTileBytes;
  }
  NF12_INLINE constexpr uint32_t index_word(int64_t r, int64_t c) const {
    return index[r * index_stride + c];
  }
};

}  // namespace nf12
