// The reader's rules: what makes a packed weight from a file trustworthy. Plain functions on raw
// pointers; csrc/cpu/check.cpp runs them over all tiles, csrc/torch adds what needs a tensor
// (dtypes, devices, ranks).
//
// A check never reads outside payload [R, C, 1536], index [R, C] and escapes [4 * quads], whatever
// they hold: no table word is followed before its range has passed.
#pragma once
#include <cstdint>

#include "csrc/format/escapes.hpp"
#include "csrc/format/layout.hpp"
#include "csrc/format/scale.hpp"

namespace nf12 {

// The first rule that does not hold. Fields that do not apply are -1.
struct Violation {
  const char* tensor = nullptr;  // "meta", "payload", "index", "escapes"; null: no violation
  const char* rule = nullptr;
  int64_t value = 0;  // the offending number; `hex` says how to print it
  bool hex = false;
  int64_t expert = -1;
  int64_t tile_row = -1;
  int64_t tile_column = -1;
  int64_t row = -1;  // within the weight [n, k]
  int64_t column = -1;

  constexpr explicit operator bool() const { return tensor != nullptr; }
};

// What the integers must satisfy before any pointer is followed.
struct PackedShape {
  int64_t version, n, k, base;
  int64_t payload_tile_rows, payload_tile_columns, payload_tile_bytes;
  int64_t index_tile_rows, index_tile_columns;
  int64_t escapes_length;
};

NF12_INLINE constexpr Violation check_shape(const PackedShape& s) {
  if (s.version != kFormatVersion) return {"meta", "this library reads version 1", s.version};
  if (s.n < 1) return {"meta", "out_features must be at least 1", s.n};
  if (s.k < 1) return {"meta", "in_features must be at least 1", s.k};
  if (s.base < kMinBase || s.base > kMaxBase) return {"meta", "base must be 96..128", s.base};
  if (s.payload_tile_bytes != kTileBytes) {
    return {"payload", "a tile must have 1536 bytes", s.payload_tile_bytes};
  }
  if (s.payload_tile_rows != tile_rows(s.n)) {
    return {"payload", "tile rows must be ceil(out_features / 16)", s.payload_tile_rows};
  }
  if (s.payload_tile_columns != tile_columns(s.k)) {
    return {"payload", "tile columns must be ceil(in_features / 64)", s.payload_tile_columns};
  }
  if (s.index_tile_rows != s.payload_tile_rows) {
    return {"index", "tile rows must be those of payload", s.index_tile_rows};
  }
  if (s.index_tile_columns != s.payload_tile_columns) {
    return {"index", "tile columns must be those of payload", s.index_tile_columns};
  }
  if (s.escapes_length % kEntriesPerQuad != 0) {
    return {"escapes", "length must be a multiple of 4", s.escapes_length};
  }
  if (s.escapes_length / kEntriesPerQuad > int64_t{kMaxQuads}) {
    return {"escapes", "length must be at most 2^26", s.escapes_length};
  }
  return {};
}

// One tile of a weight under check: its place, its bytes, and how much of it is not padding.
struct TileCheck {
  const uint8_t* tile;
  const uint32_t* escapes;
  uint32_t word;
  uint32_t quads;
  int base;
  int rows;     // 1..16
  int columns;  // 1..64

  NF12_INLINE constexpr bool is_padding(int row, int column) const {
    return row >= rows || column >= columns;
  }
  NF12_INLINE constexpr uint32_t payload_bits(int row, int column) const {
    const uint8_t code_byte =
        tile[code_word_byte(row, column) + code_bit(column) / 8];  // little endian on any host
    const uint32_t code = code_byte >> code_bit(column) % 8 & 0xF;
    return code << 8 | tile[sign_mantissa_byte(row, column)];
  }
};

// Places in these results are within the tile; check_tile's caller adds the tile's own.
NF12_INLINE constexpr Violation index_violation(const char* rule, uint32_t word) {
  return {"index", rule, word, true};
}
NF12_INLINE constexpr Violation tile_violation(const char* tensor, const char* rule, uint32_t value,
                                               int position) {
  Violation v{tensor, rule, value, true};
  v.row = position / kTileColumns;
  v.column = position % kTileColumns;
  return v;
}

NF12_INLINE constexpr Violation check_index_word(const TileCheck& t) {
  const IndexWord word = IndexWord::from_bits(t.word);
  if (word.count == 0) {
    return t.word == 0 ? Violation{}
                       : index_violation("the word of a tile without escapes must be 0", t.word);
  }
  if (!word.is_raw() && !word.is_listed()) {
    return index_violation("count must be 0..64 or 255", t.word);
  }
  if (!word.is_inside(t.quads)) {
    return index_violation("quads must lie inside escapes", t.word);
  }
  return {};
}

NF12_INLINE constexpr Violation check_listed(const TileCheck& t) {
  const IndexWord word = IndexWord::from_bits(t.word);
  const uint32_t* entries = t.escapes + int64_t{word.quad} * kEntriesPerQuad;
  int previous = -1;
  for (uint32_t i = 0; i < word.count; ++i) {
    const Escape escape = Escape::from_bits(entries[i]);
    const int position = static_cast<int>(escape.position);
    const char* rule = nullptr;
    if (entries[i] >> 26 != 0) {
      rule = "bits 26..31 of an entry must be zero";
    } else if (position <= previous) {
      rule = "entries of a tile must ascend";
    } else if (t.is_padding(position / kTileColumns, position % kTileColumns)) {
      rule = "an entry must not lie in the padding";
    } else if (in_window(escape.value, kNeutralBase)) {
      rule = "an entry must lie outside the window";
    } else if (!scales_exactly(escape.value, -scale_shift(t.base))) {
      rule = "an entry times 2^-s must be exact in BF16";
    }
    if (rule != nullptr) return tile_violation("escapes", rule, entries[i], position);
    previous = position;
    const uint32_t bits = t.payload_bits(position / kTileColumns, position % kTileColumns);
    if (bits != 0) {
      return tile_violation("payload", "bits of an escape must be zero", bits, position);
    }
  }
  for (uint32_t i = word.count; i < word.quads() * kEntriesPerQuad; ++i) {
    if (entries[i] != 0) {
      return {"escapes", "the last quad of a tile must be filled with 0", entries[i], true};
    }
  }
  return {};
}

NF12_INLINE constexpr Violation check_raw(const TileCheck& t) {
  const uint32_t* pairs = t.escapes + int64_t{IndexWord::from_bits(t.word).quad} * kEntriesPerQuad;
  for (int position = 0; position < kTileWeights; ++position) {
    const auto value = static_cast<uint16_t>(pairs[position / 2] >> 16 * (position % 2));
    if (t.is_padding(position / kTileColumns, position % kTileColumns)) {
      if (value != 0) {
        return tile_violation("escapes", "padding of a raw tile must be +0", value, position);
      }
    } else if (!scales_exactly(value, -scale_shift(t.base))) {
      return tile_violation("escapes", "a raw value times 2^-s must be exact in BF16", value,
                            position);
    }
  }
  for (int i = 0; i < kTileBytes; ++i) {
    if (t.tile[i] != 0) {
      return {"payload", "bytes of a raw tile must be zero", t.tile[i], true};
    }
  }
  return {};
}

NF12_INLINE constexpr Violation check_padding(const TileCheck& t) {
  for (int row = 0; row < kTileRows; ++row) {
    for (int column = row < t.rows ? t.columns : 0; column < kTileColumns; ++column) {
      const uint32_t bits = t.payload_bits(row, column);
      if (bits != 0) {
        return tile_violation("payload", "bits of the padding must be zero", bits,
                              kTileColumns * row + column);
      }
    }
  }
  return {};
}

// Every rule on the contents of one tile.
NF12_INLINE constexpr Violation check_tile(const TileCheck& t) {
  Violation violation = check_index_word(t);
  if (violation) return violation;
  const IndexWord word = IndexWord::from_bits(t.word);
  if (word.is_raw()) return check_raw(t);
  if (word.is_listed()) violation = check_listed(t);
  if (violation) return violation;
  return check_padding(t);
}

}  // namespace nf12
