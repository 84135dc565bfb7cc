// From a packed weight to the launch of an unpack kernel. Host code; pure.
#pragma once
#include <algorithm>

#include "csrc/unpack/kernel.hpp"

namespace nf12 {

// Tiles of one wave of kernel.hpp: enough for its loads to run ahead, few enough to balance the
// last waves. One of tile_kernel.hpp.
inline constexpr int64_t kUnpackTilesPerWave = 4;

// Blocks of kUnpackWaves waves; any number is right.
constexpr int64_t unpack_blocks(int64_t tiles, int64_t tiles_per_wave) {
  const int64_t block_tiles = kUnpackWaves * tiles_per_wave;
  return std::min((tiles + block_tiles - 1) / block_tiles, int64_t{1} << 20);
}

// out: [experts, n, k], rows `row_stride` elements apart. Fills in the steps; returns the blocks.
inline int64_t unpack_launch(UnpackParams& p, int64_t experts,
                             int64_t tiles_per_wave = kUnpackTilesPerWave) {
  const PackedView& first = p.packed.first;
  p.out.n = static_cast<int32_t>(first.n);
  p.out.k = static_cast<int32_t>(first.k);
  const int64_t blocks =
      unpack_blocks(experts * tile_rows(first.n) * tile_columns(first.k), tiles_per_wave);
  p.steps = tile_steps(experts, first.n, first.k, blocks * kUnpackWaves);
  return blocks;
}

// Which of the instances nf12_unpack_a16, _a4, _a2 (nf12_unpack_tile_a16, ...) may write `out`.
inline int unpack_alignment(const DenseStack<uint16_t>& out, int64_t experts) {
  const uint64_t rows = reinterpret_cast<uintptr_t>(out.weights) | out.row_stride * 2;
  return alignment_of(experts > 1 ? rows | out.expert_stride * 2 : rows);
}

// Tile rows [first, first + count) as a weight of their own, the tail of n included.
constexpr PackedView slice_tile_rows(PackedView weight, int64_t first, int64_t count) {
  weight.payload += first * weight.payload_stride_bytes;
  weight.index += first * weight.index_stride;
  weight.n = std::min(weight.n - first * kTileRows, count * kTileRows);
  return weight;
}

}  // namespace nf12
