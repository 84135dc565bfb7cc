// Escapes, put in place of decoded weights before anything is multiplied.
//
// A lane holds `pairs` BF16 pairs of its row (fused/kernel.hpp): rows of tile row 2b + half,
// columns 2 * pairs * chunk onwards. Index words and entries are uniform, so a list costs scalar
// work and one vector merge an entry; nothing here is on the path of a clean tile.
#pragma once
#include "csrc/format/escapes.hpp"
#include "csrc/gemm/params.hpp"

namespace nf12 {

// `escapes` holds `count` entries; those of other columns belong to another chunk.
template <int pairs>
NF12_DEVICE void patch_listed(const uint32_t* escapes, int count, int half, int chunk,
                              uint32_t (&w)[pairs]) {
  arch::Words<4> quad = {};
  NF12_NO_UNROLL
  for (int i = 0; i < count; ++i) {
    if (i % kEntriesPerQuad == 0)
      quad = arch::uniform_load<4>(escapes, 4 * i);
    else
      quad = {quad.w[1], quad.w[2], quad.w[3], 0};
    const Escape escape = Escape::from_bits(quad.w[0]);
    const int column = static_cast<int>(escape.position % kTileColumns);
    const int owner = static_cast<int>(escape.position / kTileColumns) + half * kTileRows;
    const uint32_t mask = arch::lane() == owner ? (column % 2 ? 0xFFFF0000u : 0x0000FFFFu) : 0u;
    const uint32_t value = escape.value * 0x10001u;
    NF12_UNROLL
    for (int first = 0; first < pairs; first += 16)
      if (column / 32 == (chunk * pairs + first) / 16)
        arch::replace16(&w[first], column / 2 % 16, mask, value);
  }
}

// `values` holds 16 rows of 64 BF16. The lanes of the other tile read along and keep their own.
template <int pairs>
NF12_DEVICE void patch_raw(const uint32_t* values, int half, int chunk, uint32_t (&w)[pairs]) {
  uint32_t lane = arch::lane();
  arch::settle(lane);
  uint32_t offset = lane % kTileRows * kTileColumns * 2 + chunk * pairs * 4;
  const uint32_t mask = lane / kTileRows == static_cast<uint32_t>(half) ? ~0u : 0u;
  NF12_UNROLL
  for (int i = 0; i < pairs / 4; ++i) {
    const arch::Words<4> words = arch::load16(values, offset);
    NF12_UNROLL
    for (int j = 0; j < 4; ++j) arch::replace_bits(w[4 * i + j], mask, words.w[j]);
    offset += 16;
    arch::settle(offset);  // one load at a time: together they would need as many registers as w
  }
}

// Escapes replace decoded weights before anything is multiplied.
template <int pairs>
NF12_DEVICE void patch_chunk(const GemmParams& p, const uint32_t (&index)[2], int chunk,
                             uint32_t (&w)[pairs]) {
  if ((index[0] | index[1]) == 0) return;
  const PackedView& weight = arch::reread_arguments(p).weight;
  NF12_NO_UNROLL
  for (int half = 0; half < 2; ++half) {
    const IndexWord word = IndexWord::from_bits(half == 0 ? index[0] : index[1]);
    if (!word.is_inside(weight.quads)) continue;
    const uint32_t* quads = weight.escapes + int64_t{word.quad} * kEntriesPerQuad;
    // Two ifs in a row instead of if and else: between the arms of one, w would be copied.
    const int listed = arch::in_register(word.is_raw() ? 0 : static_cast<int>(word.count));
    if (listed == 0) patch_raw(quads, half, chunk, w);
    patch_listed(quads, listed, half, chunk, w);
  }
}

}  // namespace nf12
