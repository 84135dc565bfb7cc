// Activations, once per call: x [m, k] BF16 of any stride becomes [C, m, 64], zeros beyond k, in
// the order of columns and the element type that a kernel multiplies.
//
// Tile column first, so that the tokens of one tile lie together: [m, k] rows a power of two apart
// would fall on the same cache sets.
#pragma once
#include <cstring>

#include "csrc/cpu/parallel.hpp"
#include "csrc/format/layout.hpp"

namespace nf12::cpu {

template <class X>
NF12_INLINE size_t activation_bytes(int64_t m, int64_t k) {
  return sizeof(X) * static_cast<size_t>(m * tile_columns(k) * kTileColumns);
}

template <class X>
struct Activations {
  const X* data;
  int64_t m;

  NF12_INLINE const X* at(int64_t tile_column, int64_t token) const {
    return data + (tile_column * m + token) * kTileColumns;
  }
};

// The 64 BF16 values of token t and tile column c: where they lie, or, for the last columns, a copy
// with zeros beyond k. Nothing beyond k is read.
NF12_INLINE const uint16_t* columns_of(const GemmArgs& args, int64_t c, int64_t t,
                                       uint16_t (&copy)[kTileColumns]) {
  const uint16_t* source = args.x + t * args.x_row_stride + c * kTileColumns;
  const int64_t left = args.w.k - c * kTileColumns;
  if (left >= kTileColumns) return source;
  std::memset(copy, 0, sizeof copy);
  std::memcpy(copy, source, static_cast<size_t>(left) * sizeof(uint16_t));
  return copy;
}

// Threads are woken (5-10 us) for 64 Ki products and more each; a unit is one of `unit` products.
NF12_INLINE int64_t grain_for(int64_t unit) {
  constexpr int64_t kWorthThread = 64 * 1024;
  return unit < kWorthThread ? kWorthThread / unit : 1;
}

// store(row, out) turns 64 BF16 values, at any address, into 64 of X. The workspace holds the
// result.
template <class X, class Store>
NF12_INLINE Activations<X> prepare_activations(const GemmArgs& args, const Parallel& parallel,
                                               Store store) {
  auto* data = static_cast<X*>(args.workspace);
  parallel_for(parallel, tile_columns(args.w.k), grain_for(args.m * kTileColumns),
               [&args, data, store](int64_t begin, int64_t end) {
                 X* out = data + begin * args.m * kTileColumns;
                 for (int64_t c = begin; c < end; ++c) {
                   for (int64_t t = 0; t < args.m; ++t, out += kTileColumns) {
                     uint16_t copy[kTileColumns];
                     store(columns_of(args, c, t, copy), out);
                   }
                 }
               });
  return {data, args.m};
}

// body(begin, end) for ranges of row blocks. Threads own whole blocks and each is summed in one
// order: the number of threads changes no bit of y.
template <class Body>
NF12_INLINE void for_row_blocks(const GemmArgs& args, const Parallel& parallel, Body body) {
  const int64_t unit = args.m * tile_columns(args.w.k) * kTileWeights;
  parallel_for(parallel, tile_rows(args.w.n), grain_for(unit), body);
}

}  // namespace nf12::cpu
