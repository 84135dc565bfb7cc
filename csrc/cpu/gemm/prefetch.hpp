// Bringing tiles into the caches before they are needed. A tile's two planes are two streams that
// jump at its end, which the hardware does not follow: without this the kernels take twice as long
// (m = 1, 2-core AVX2, 4096x4096: 4.1 ms instead of 2.1).
//
// Work on one tile asks for parts of another as it goes. All 24 lines at once would fill the queue
// of outstanding misses and stall the loads behind them: 14 % slower there.
#pragma once
#include "csrc/cpu/gemm/unroll.hpp"
#include "csrc/format/layout.hpp"

namespace nf12::cpu {

// How far ahead, in tiles: 2, 4, 8 and 16 measured alike.
inline constexpr int64_t kPrefetchTiles = 4;

// Part `part` of kParts of the tile at `ahead`, an address that may lie outside the weight: these
// instructions never fault.
template <int kParts>
NF12_INLINE void prefetch_part(const uint8_t* ahead, int part) {
  constexpr int kLines = kTileBytes / 64;
  constexpr int kPartLines = (kLines + kParts - 1) / kParts;  // parts may overlap
  const uint8_t* first = ahead + part * (kTileBytes / kParts);
  NF12_UNROLL_REGISTERS for (int line = 0; line < kPartLines; ++line) {
    __builtin_prefetch(first + 64 * line);
  }
}

// The index words of a row block.
NF12_INLINE void prefetch_index(const PackedView& w, int64_t r) {
  const auto* words = reinterpret_cast<const uint8_t*>(w.index + r * w.index_stride);
  const int64_t bytes = tile_columns(w.k) * static_cast<int64_t>(sizeof *w.index);
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(words + i);
}

}  // namespace nf12::cpu
