// From a packed weight to the launch of check, and from its answer to the violation. Host code.
#pragma once
#include <algorithm>

#include "csrc/pack/check.hpp"

namespace nf12 {

// Blocks of kCheckWaves waves, a lane a tile; any number is right.
inline int64_t check_launch(CheckParams& p, int64_t experts) {
  constexpr int64_t kBlockTiles = kCheckWaves * arch::kWave;
  const int64_t n = p.packed.first.n, k = p.packed.first.k;
  const int64_t tiles = experts * tile_rows(n) * tile_columns(k);
  const int64_t blocks =
      std::clamp((tiles + kBlockTiles - 1) / kBlockTiles, int64_t{1}, int64_t{1} << 16);
  p.steps = tile_steps(experts, n, k, blocks * kBlockTiles);
  return blocks;
}

// What a bad tile's word names of the table; nothing where the word itself is wrong. The host
// copies these quads, and the tile's 1,536 bytes, before it asks for the violation.
struct TileQuads {
  uint32_t first, count;
};
inline TileQuads quads_of(uint32_t index_word, uint32_t table_quads) {
  const IndexWord word = IndexWord::from_bits(index_word);
  if (!word.is_inside(table_quads)) return {0, 0};
  return {word.quad, word.quads()};
}

// The rule that tile number `number` breaks. `tile` and `quads` are host copies; is_stack: whether
// the weight has experts to name.
inline Violation violation_of(const CheckParams& p, uint32_t number, const uint8_t* tile,
                              uint32_t index_word, const uint32_t* quads, bool is_stack) {
  const int64_t columns = p.steps.columns, rows = p.steps.rows;
  const int64_t c = number % columns, r = number / columns % rows;
  TileCheck check =
      tile_check(p.packed.first, static_cast<int>(r), static_cast<int>(c), tile, index_word);
  Violation violation = check_index_word(check);
  if (!violation) {  // then the copies are all that the rest looks at
    const IndexWord word = IndexWord::from_bits(index_word);
    check.word = IndexWord{word.count, 0}.bits();
    check.escapes = quads;
    violation = check_tile(check);
  }
  violation.expert = is_stack ? number / columns / rows : -1;
  violation.tile_row = r;
  violation.tile_column = c;
  if (violation.row >= 0) violation.row += r * kTileRows;
  if (violation.column >= 0) violation.column += c * kTileColumns;
  return violation;
}

}  // namespace nf12
