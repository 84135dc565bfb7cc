// Activations, once per call: x [m, k] BF16 of any stride becomes [C, m, 64] in lane order, zeros
// beyond k, as the element type that the level multiplies.
//
// Tile column first, so that the tokens of one tile lie together: [m, k] rows a power of two apart
// would fall on the same cache sets.
#pragma once
#include <cstring>

#include "csrc/cpu/gemm/lane_order.hpp"
#include "csrc/cpu/parallel.hpp"

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

// Token t's columns of tile column c in lane order, zeros beyond k. Reads nothing beyond k.
template <class V>
NF12_INLINE void load_lane_order(const GemmArgs& args, int64_t c, int64_t t,
                                 uint16_t (&out)[kTileColumns]) {
  const int64_t k0 = c * kTileColumns;
  const int64_t columns = args.w.k - k0 < kTileColumns ? args.w.k - k0 : kTileColumns;
  const uint16_t* source = args.x + t * args.x_row_stride + k0;
  uint16_t padded[kTileColumns] = {};
  if (columns < kTileColumns) {
    std::memcpy(padded, source, static_cast<size_t>(columns) * sizeof(uint16_t));
    source = padded;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kPieces; ++i) {
    std::memcpy(out + kPiece * lane_order_piece<V::kPairLanes>(i), source + kPiece * i,
                kPiece * sizeof(uint16_t));
  }
}

template <class V>
NF12_INLINE void reorder_tile_columns(const GemmArgs& args, int64_t begin, int64_t end) {
  auto* out = static_cast<typename V::X*>(args.workspace) + begin * args.m * kTileColumns;
  for (int64_t c = begin; c < end; ++c) {
    for (int64_t t = 0; t < args.m; ++t, out += kTileColumns) {
      alignas(64) uint16_t row[kTileColumns];
      load_lane_order<V>(args, c, t, row);
      for (int i = 0; i < kTileColumns; i += 2 * V::kPairLanes) {
        V::store_x(out + i, V::load(row + i));
      }
    }
  }
}

// Threads are woken (5-10 us) for 64 Ki products and more each; a unit is one of `unit` products.
NF12_INLINE int64_t grain_for(int64_t unit) {
  constexpr int64_t kWorthThread = 64 * 1024;
  return unit < kWorthThread ? kWorthThread / unit : 1;
}

template <class V>
NF12_INLINE Activations<V> reorder_activations(const GemmArgs& args, const Parallel& parallel) {
  parallel_for(parallel, tile_columns(args.w.k), grain_for(args.m * kTileColumns),
               [&args](int64_t begin, int64_t end) { reorder_tile_columns<V>(args, begin, end); });
  return {static_cast<const typename V::X*>(args.workspace), args.m};
}

// body(begin, end) for ranges of row blocks. Threads own whole blocks and each is summed in one
// order: the number of threads changes no bit of y.
template <class Body>
NF12_INLINE void for_row_blocks(const GemmArgs& args, const Parallel& parallel, Body body) {
  const int64_t unit = args.m * tile_columns(args.w.k) * kTileWeights;
  parallel_for(parallel, tile_rows(args.w.n), grain_for(unit), body);
}

}  // namespace nf12::cpu
