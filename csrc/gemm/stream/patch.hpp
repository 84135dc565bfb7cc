// Escapes of a tile that is decoded in a wave's registers, put in by all lanes at once: the tile
// goes through shared memory, and each lane writes one or two entries over it. Its cost does not
// depend on how many there are, up to 32; a loop over entries (matrix/patch.hpp) costs a hundred
// cycles each, which at 1 % of escapes would take three times as long as the tile's bytes.
#pragma once
#include "csrc/gemm/matrix/patch.hpp"

namespace nf12 {

// A decoded tile is a quarter larger than the encoded one, in whose place it goes; what is left
// over has a place of its own. In words of the block's shared memory.
struct DecodedPlace {
  int tile;  // as it was copied, kTileBytes
  int rest;  // kRestWords, the wave's own
};
inline constexpr int kQuarterWords = kTileWeights / 8;
inline constexpr int kRestWords = kQuarterWords;
static_assert(3 * kQuarterWords * 4 == kTileBytes);

// Fragments: pair `slot` of lane `owner`.
NF12_DEVICE int decoded_word(const DecodedPlace& place, int owner, int slot) {
  const int quarter = slot / 4;
  return (quarter < 3 ? place.tile + quarter * kQuarterWords : place.rest) + owner * 4 + slot % 4;
}

// Which 16 bits of shared memory an entry replaces.
template <typename Fragments>
NF12_DEVICE int decoded_half(const DecodedPlace& place, const Escape& escape) {
  const int row = static_cast<int>(escape.position / kTileColumns);
  const int column = static_cast<int>(escape.position % kTileColumns);
  return 2 * decoded_word(place, Fragments::owner(row, column), Fragments::slot(row, column)) +
         column % 2;
}

// `mine`: entry lane() of the list, fetched a tile ahead; the rest of a long one is read here.
template <typename Fragments>
NF12_DEVICE void patch_list(const arch::Shared<uint32_t>& shared, const DecodedPlace& place,
                            const uint32_t* entries, int count, uint32_t mine,
                            uint32_t (&w)[kLanePairs]) {
  const int lane = arch::lane();
  const Escape own = Escape::from_bits(mine);
  const int half = decoded_half<Fragments>(place, own);
  arch::sync_wave();  // every lane has read its part of the encoded tile
  NF12_UNROLL
  for (int i = 0; i < kLanePairs; i += 4)
    arch::store_shared16(shared, decoded_word(place, lane, i),
                         {{w[i], w[i + 1], w[i + 2], w[i + 3]}});
  arch::sync_wave();
  if (lane < count) arch::store_shared2(shared, half, own.value);
  if (lane + arch::kWave < count) {
    const Escape far = Escape::from_bits(arch::load_words<1>(entries + lane + arch::kWave).w[0]);
    arch::store_shared2(shared, decoded_half<Fragments>(place, far), far.value);
  }
  arch::sync_wave();
  NF12_UNROLL
  for (int i = 0; i < kLanePairs; i += 4) {
    const arch::Words<4> words = arch::load_shared<4>(shared, decoded_word(place, lane, i));
    NF12_UNROLL
    for (int j = 0; j < 4; ++j) w[i + j] = words.w[j];
  }
}

}  // namespace nf12
