// Lambdas for Parallel, and the tiles of a stack as one flat range to split.
#pragma once
#include <cstdint>
#include <type_traits>

#include "csrc/cpu/cpu.hpp"
#include "csrc/format/layout.hpp"

namespace nf12::cpu {

// body(begin, end) on disjoint parts of [0, count), on several threads. It must not throw.
template <typename Body>
void parallel_for(const Parallel& parallel, int64_t count, int64_t grain, Body&& body) {
  if (count <= 0) return;
  parallel.run(
      0, count, grain,
      [](int64_t begin, int64_t end, void* context) {
        (*static_cast<std::remove_reference_t<Body>*>(context))(begin, end);
      },
      &body);
}

// Tiles are worth a thread from this many on: 128 KiB of BF16, tens of microseconds.
inline constexpr int64_t kGrainTiles = 64;

struct TileGrid {
  int64_t experts, rows, columns;

  int64_t tiles() const { return experts * rows * columns; }

  // visit(tile, expert, tile row, tile column) for tiles [begin, end) in (expert, r, c) order.
  template <typename Visit>
  void for_each(int64_t begin, int64_t end, Visit&& visit) const {
    int64_t c = begin % columns;
    int64_t r = begin / columns % rows;
    int64_t x = begin / columns / rows;
    for (int64_t tile = begin; tile < end; ++tile) {
      visit(tile, x, r, c);
      if (++c < columns) continue;
      c = 0;
      if (++r < rows) continue;
      r = 0;
      ++x;
    }
  }
};

}  // namespace nf12::cpu
