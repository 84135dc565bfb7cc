// Check: the reader's rules (format/check.hpp) over every tile of a packed weight.
//
// A lane checks a tile, and the number of the earliest bad one is left behind: the minimum does not
// depend on who finds what first. Which rule it breaks the host finds out from that tile alone, by
// the same functions, so that the texts are those of the CPU.
//
// Rare by nature (once, when a weight is read from a file), so simple before fast: a clean tile
// costs its index word, a listed one its entries and their payload bits, one with padding the
// payload bits of that, a raw one all of it.
#pragma once
#include "csrc/format/check.hpp"
#include "csrc/format/stack.hpp"

namespace nf12 {

struct CheckParams {
  PackedStack packed;
  TileSteps steps;      // of lanes, not waves
  uint32_t* first_bad;  // [1] set to kNoTile before; the lowest tile number that breaks a rule
};

inline constexpr int kCheckWaves = 4;
inline constexpr uint32_t kNoTile = 0xFFFFFFFFu;

NF12_INLINE constexpr int at_most(int64_t value, int most) {
  return value < most ? static_cast<int>(value) : most;
}

// A tile of the stack as the rules want it; `word` and what it points to may be copies.
NF12_INLINE constexpr TileCheck tile_check(const PackedView& weight, int r, int c,
                                           const uint8_t* tile, uint32_t word) {
  return {.tile = tile,
          .escapes = weight.escapes,
          .word = word,
          .quads = weight.quads,
          .base = weight.base,
          .rows = at_most(weight.n - int64_t{r} * kTileRows, kTileRows),
          .columns = at_most(weight.k - int64_t{c} * kTileColumns, kTileColumns)};
}

NF12_DEVICE void check_tiles(const CheckParams& p) {
  const uint32_t first =
      (arch::block_x() * kCheckWaves + arch::wave()) * arch::kWave + arch::lane();
  TilePlace place = TilePlace::of(p.steps, first);
  NF12_NO_UNROLL
  for (; place.tile < p.steps.tiles; place.advance(p.steps)) {
    const TileCheck tile =
        tile_check(p.packed.first, place.r, place.c, p.packed.tile(place.x, place.r, place.c),
                   *p.packed.index_word(place.x, place.r, place.c));
    if (!check_tile(tile)) continue;
    arch::atomic_min4(p.first_bad, place.tile);
    return;  // later ones of this lane cannot be the earliest
  }
}

}  // namespace nf12
