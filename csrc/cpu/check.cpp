// The reader's rules of csrc/format/check.hpp over all tiles.
#include "csrc/format/check.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <mutex>

#include "csrc/cpu/cpu.hpp"
#include "csrc/cpu/parallel.hpp"

namespace nf12::cpu {
namespace {

Violation check_tile_at(const PackedView& w, int64_t expert, int64_t r, int64_t c) {
  const TileCheck tile{
      .tile = w.tile(r, c),
      .escapes = w.escapes,
      .word = w.index_word(r, c),
      .quads = w.quads,
      .base = w.base,
      .rows = static_cast<int>(std::min<int64_t>(kTileRows, w.n - r * kTileRows)),
      .columns = static_cast<int>(std::min<int64_t>(kTileColumns, w.k - c * kTileColumns)),
  };
  Violation violation = check_tile(tile);
  violation.expert = expert;
  violation.tile_row = r;
  violation.tile_column = c;
  if (violation.row >= 0) violation.row += r * kTileRows;
  if (violation.column >= 0) violation.column += c * kTileColumns;
  return violation;
}

}  // namespace

Violation check(const PackedView& w, int64_t expert, const Parallel& parallel) {
  const TileGrid grid{1, tile_rows(w.n), tile_columns(w.k)};
  int64_t first = grid.tiles();  // with the earliest tile, threads cannot change the answer
  Violation found;
  std::mutex found_mutex;
  parallel_for(parallel, grid.tiles(), kGrainTiles, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const Violation violation =
          check_tile_at(w, expert, tile / grid.columns, tile % grid.columns);
      if (!violation) continue;
      const std::lock_guard lock(found_mutex);
      if (tile < first) {
        first = tile;
        found = violation;
      }
      return;
    }
  });
  return found;
}

std::string describe(const Violation& v) {
  char value[32];
  std::snprintf(value, sizeof(value), v.hex ? "0x%" PRIx64 : "%" PRId64, v.value);
  std::string text = std::string(v.tensor) + ": " + v.rule + ": " + value;
  if (v.expert >= 0) text += ", expert " + std::to_string(v.expert);
  if (v.tile_row >= 0) {
    text += ", tile (" + std::to_string(v.tile_row) + ", " + std::to_string(v.tile_column) + ")";
  }
  if (v.row >= 0) {
    text += ", weight (" + std::to_string(v.row) + ", " + std::to_string(v.column) + ")";
  }
  return text;
}

}  // namespace nf12::cpu
