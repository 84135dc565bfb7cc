// Where a kernel takes a tile's weights from: its payload, or 2 KiB of decoded and patched BF16.
// Both give registers of pairs in lane order.
#pragma once
#include "csrc/cpu/gemm/lane_order.hpp"
#include "csrc/cpu/gemm/patch.hpp"
#include "csrc/cpu/gemm/prefetch.hpp"

namespace nf12::cpu {

template <class V>
struct PackedTile {
  const uint8_t* tile;

  NF12_INLINE void load(int row, int half, typename V::Pairs (&w)[2]) const {
    V::decode(tile, row, half, w);
  }
};

// BF16 in lane order, 64-byte aligned.
template <class V>
struct DecodedTile {
  uint16_t bits[kTileWeights];

  NF12_INLINE void load(int row, int half, typename V::Pairs (&w)[2]) const {
    const uint16_t* p = bits + kTileColumns * row + 4 * V::kPairLanes * half;
    w[0] = V::load(p);
    w[1] = V::load(p + 2 * V::kPairLanes);
  }

  // `ahead` is a tile to come, brought into the caches a line at a time.
  NF12_INLINE void fill(const PackedView& w, const uint8_t* tile, uint32_t index_word,
                        const uint8_t* ahead) {
    for (int row = 0; row < kTileRows; ++row) {
      prefetch_part<kTileRows>(ahead, row);
      for (int half = 0; half < V::kHalves; ++half) {
        typename V::Pairs pairs[2];
        V::decode(tile, row, half, pairs);
        uint16_t* p = bits + kTileColumns * row + 4 * V::kPairLanes * half;
        V::store(p, pairs[0]);
        V::store(p + 2 * V::kPairLanes, pairs[1]);
      }
    }
    if (index_word != 0) {
      patch_tile(w, index_word, [this](int position, uint16_t value) {
        bits[lane_order<V::kPairLanes>(position)] = value;
      });
    }
  }
};

}  // namespace nf12::cpu
