// Escapes of a wave's tiles, with one test for a tile that has none: index words come by 31, and
// the bit behind the last one's says that they end. In the kernels that stream their weights the
// same test costs registers that they do not have (16 tokens: 1.01 of dense instead of 1.24, H200,
// 2026-11-30).
#pragma once
#include <bit>

#include "csrc/gemm/stream/tiles.hpp"

namespace nf12 {

inline constexpr int kBatchTiles = arch::kWave - 1;

// Those of tile t, decoded in `w`; makes ready for the next of `count` tiles.
template <typename Fragments>
NF12_DEVICE void patch_listed(const PackedView& weight, const arch::Shared<uint32_t>& shared,
                              const DecodedPlace& place, int t, int count, TileIndex& index,
                              uint32_t (&w)[kLanePairs]) {
  const uint32_t listed = index.listed;
  index.listed >>= 1;
  if ((listed & 3) == 0) return;  // neither this tile nor the next, and more words are here
  const int here = std::countl_zero(listed);
  if (listed & 1) patch_tile<Fragments>(weight, shared, place, index, here, w);
  if (index.listed == 1) {
    load_index<kBatchTiles>(index, t + 1, count);
    open_index<kBatchTiles>(weight, index, 0);
  } else if (index.listed & 1) {
    fetch_entries(weight, index, here + 1);
  }
}

}  // namespace nf12
