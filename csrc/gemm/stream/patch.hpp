// Escapes of a tile that is decoded in a wave's registers, put in by all lanes at once: the tile
// goes through shared memory, and each lane writes one or two entries over it. Its cost does not
// depend on how many there are, up to 32; a loop over entries (matrix/patch.hpp) costs a hundred
// cycles each, which at 1 % of escapes would take three times as long as the tile's bytes.
#pragma once
#include "csrc/gemm/matrix/patch.hpp"
#include "csrc/gemm/stream/plan.hpp"

namespace nf12 {

// Fragments: pair `slot` of lane `owner` lies at this word of the scratch.
NF12_DEVICE int scratch_word(int owner, int slot) {
  return slot / 4 * (4 * arch::kWave) + owner * 4 + slot % 4;
}

NF12_DEVICE void put_entry(const arch::Shared<uint32_t>& scratch, int first_word,
                           uint32_t entry_bits) {
  using arch::Fragments;
  const Escape escape = Escape::from_bits(entry_bits);
  const int row = static_cast<int>(escape.position / kTileColumns);
  const int column = static_cast<int>(escape.position % kTileColumns);
  const int word =
      first_word + scratch_word(Fragments::owner(row, column), Fragments::slot(row, column));
  arch::store_shared2(scratch, 2 * word + column % 2, escape.value);
}

// `mine`: entry lane() of the list, fetched a tile ahead; the rest of a long one is read here.
NF12_DEVICE void patch_list(const arch::Shared<uint32_t>& scratch, int first_word,
                            const uint32_t* entries, int count, uint32_t mine,
                            uint32_t (&w)[kLanePairs]) {
  const int lane = arch::lane();
  NF12_UNROLL
  for (int i = 0; i < kLanePairs; i += 4)
    arch::store_shared16(scratch, first_word + scratch_word(lane, i),
                         {{w[i], w[i + 1], w[i + 2], w[i + 3]}});
  arch::sync_wave();
  if (lane < count) put_entry(scratch, first_word, mine);
  if (lane + arch::kWave < count)
    put_entry(scratch, first_word, arch::load_words<1>(entries + lane + arch::kWave).w[0]);
  arch::sync_wave();
  NF12_UNROLL
  for (int i = 0; i < kLanePairs; i += 4) {
    const arch::Words<4> words = arch::load_shared<4>(scratch, first_word + scratch_word(lane, i));
    NF12_UNROLL
    for (int j = 0; j < 4; ++j) w[i + j] = words.w[j];
  }
}

}  // namespace nf12
