// Activations, once per call: x [m, k] BF16 of any stride becomes [C, m, 64] in lane order, zeros
// beyond k, as the element type that the level multiplies.
//
// Tile column first, so that the tokens of one tile lie together: [m, k] rows a power of two apart
// would fall on the same cache sets.
#pragma once
#include <cstring>

#include "csrc/cpu/gemm/lane_order.hpp"
#include "csrc/cpu/gemm/parallel.hpp"

namespace nf12::cpu {

template <class V>
NF12_INLINE size_t activation_bytes(int64_t m, int64_t k) {
  return sizeof(typename V::X) * static_cast<size_t>(m * tile_columns(k) * kTileColumns);
}

template <class V>
struct Activations {
  const typename V::X* data;
  int64_t m;

  NF12_INLINE const typename V::X* at(int64_t tile_column, int64_t token) const {
    return data + (tile_column * m + token) * kTileColumns;
  }
};

template <class V>
NF12_INLINE void reorder_tile_columns(const GemmArgs& args, int64_t begin, int64_t end) {
  auto* out = static_cast<typename V::X*>(args.workspace) + begin * args.m * kTileColumns;
  for (int64_t c = begin; c < end; ++c) {
    const int64_t k0 = c * kTileColumns;
    const int64_t columns = args.w.k - k0 < kTileColumns ? args.w.k - k0 : kTileColumns;
    for (int64_t t = 0; t < args.m; ++t, out += kTileColumns) {
      const uint16_t* source = args.x + t * args.x_row_stride + k0;
      uint16_t padded[kTileColumns] = {};
      if (columns < kTileColumns) {
        std::memcpy(padded, source, static_cast<size_t>(columns) * sizeof(uint16_t));
        source = padded;
      }
      alignas(64) uint16_t pieces[kTileColumns];
      for (int i = 0; i < kPieces; ++i) {
        std::memcpy(pieces + kPiece * lane_order_piece<V::kPairLanes>(i), source + kPiece * i,
                    kPiece * sizeof(uint16_t));
      }
      for (int i = 0; i < kTileColumns; i += 2 * V::kPairLanes) {
        V::store_x(out + i, V::load(pieces + i));
      }
    }
  }
}

template <class V>
NF12_INLINE Activations<V> reorder_activations(const GemmArgs& args, const Parallel& parallel) {
  const auto body = [&args](int64_t begin, int64_t end) {
    reorder_tile_columns<V>(args, begin, end);
  };
  const int64_t columns = tile_columns(args.w.k);
  // Below this, waking threads (5-10 us) costs more than the work they share (1 ns a piece).
  constexpr int64_t kWorthThreads = 64 * 1024;
  if (args.m * args.w.k < kWorthThreads) {
    body(0, columns);
  } else {
    for_ranges(parallel, columns, body);
  }
  return {static_cast<const typename V::X*>(args.workspace), args.m};
}

}  // namespace nf12::cpu
