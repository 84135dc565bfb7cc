// Escapes, put in place of decoded weights before anything is multiplied, in the order in which the
// lanes of a matrix kernel hold a tile (arch/fragments.hpp): 16 registers, and every entry of the
// table has one owner. Nothing here is on the path of a clean tile.
#pragma once
#include "csrc/format/escapes.hpp"
#include "csrc/gemm/params.hpp"

namespace nf12 {

inline constexpr int kLanePairs = kTileWeights / 2 / arch::kWave;
static_assert(kLanePairs == 16);

// Entries and their number are uniform: scalar work, and one merge an entry in its owner's
// register.
NF12_DEVICE void patch_listed(const uint32_t* escapes, int count, uint32_t (&w)[kLanePairs]) {
  using arch::Fragments;
  arch::Words<4> quad = {};
  NF12_NO_UNROLL
  for (int i = 0; i < count; ++i) {
    if (i % kEntriesPerQuad == 0)
      quad = arch::uniform_load<4>(escapes, 4 * i);
    else
      quad = {quad.w[1], quad.w[2], quad.w[3], 0};
    const Escape escape = Escape::from_bits(quad.w[0]);
    const int row = static_cast<int>(escape.position / kTileColumns);
    const int column = static_cast<int>(escape.position % kTileColumns);
    const uint32_t half = column % 2 ? 0xFFFF0000u : 0x0000FFFFu;
    const uint32_t mask = arch::lane() == Fragments::owner(row, column) ? half : 0u;
    arch::replace16(w, Fragments::slot(row, column), mask, escape.value * 0x10001u);
  }
}

// `values` holds 16 rows of 64 BF16: every lane takes all it has from there.
NF12_DEVICE void patch_raw(const uint32_t* values, uint32_t (&w)[kLanePairs]) {
  using arch::Fragments;
  constexpr int kRunPairs = Fragments::kRunColumns / 2;
  int lane = arch::lane();
  arch::settle(lane);
  NF12_UNROLL
  for (int i = 0; i < kLanePairs; i += 4) {
    const uint32_t offset = 2 * (Fragments::row(lane, i / kRunPairs) * kTileColumns +
                                 Fragments::column(lane) + i % kRunPairs * 2);
    const arch::Words<4> words = arch::load16(values, offset);
    // In place: as plain assignments the registers of the clean path would be copied.
    NF12_UNROLL
    for (int j = 0; j < 4; ++j)
      arch::replace_bits(w[arch::slot_of_pair<Fragments>(i + j)], ~0u, words.w[j]);
  }
}

NF12_DEVICE void patch_tile(const PackedView& weight, uint32_t index_word,
                            uint32_t (&w)[kLanePairs]) {
  const IndexWord word = IndexWord::from_bits(index_word);
  if (!word.is_inside(weight.quads)) return;
  const uint32_t* quads = weight.escapes + int64_t{word.quad} * kEntriesPerQuad;
  // Two ifs in a row instead of if and else: between the arms of one, w would be copied.
  const int listed = arch::in_register(word.is_raw() ? 0 : static_cast<int>(word.count));
  if (listed == 0) patch_raw(quads, w);
  patch_listed(quads, listed, w);
}

}  // namespace nf12
