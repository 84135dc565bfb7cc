// Escapes take their place in a decoded tile before it is multiplied. This is the slow path: a tile
// comes here only if its index word is not 0.
#pragma once
#include "csrc/format/escapes.hpp"

namespace nf12::cpu {

// put(position, bits) stores the BF16 value of 64 r + c: each kernel keeps a tile in an order of
// its own. Words that point outside the table are ignored (see IndexWord::is_inside).
template <class Put>
NF12_INLINE void patch_tile(const PackedView& w, uint32_t index_word, Put put) {
  const IndexWord word = IndexWord::from_bits(index_word);
  if (!word.is_inside(w.quads)) return;
  const uint32_t* entries = w.escapes + static_cast<size_t>(kEntriesPerQuad) * word.quad;
  if (word.is_raw()) {
    for (int i = 0; i < kTileWeights / 2; ++i) {
      put(2 * i, static_cast<uint16_t>(entries[i]));
      put(2 * i + 1, static_cast<uint16_t>(entries[i] >> 16));
    }
    return;
  }
  for (uint32_t i = 0; i < word.count; ++i) {
    const Escape escape = Escape::from_bits(entries[i]);
    put(static_cast<int>(escape.position), escape.value);
  }
}

}  // namespace nf12::cpu
