// Matrix tiles (AMX): y = x W^T with 16 rows of W as the left factor and 16 tokens as the right
// one.
//
// Bound by memory up to about 64 tokens: a 16 x 64 weight tile feeds two products for each 16
// tokens, 128 cycles for 64 of them, while its 1,536 bytes take a core longer to arrive. So a tile
// is decoded to 2 KiB in the first-level cache, and the one after it is decoded while the matrix
// unit works. The sums of up to kGroups x 16 tokens stay in tile registers along the whole of k.
//
// A thread owns whole 16-row blocks. More tokens than kGroups x 16 decode a row block again.
//
// x becomes [C, groups, 2, 16 pairs, 16 tokens, 2] BF16: for each group of 16 tokens and each half
// of a weight tile's columns, in lane order, the right factor as it is loaded. Missing tokens and
// columns beyond k are zero.
//
// T is the set of tile registers (tiles_amx.hpp, or a model of it in tests), V decodes.
#pragma once
#include <utility>

#include "csrc/cpu/gemm/activations.hpp"
#include "csrc/cpu/gemm/epilogue.hpp"
#include "csrc/cpu/gemm/tile.hpp"
#include "csrc/cpu/gemm/unroll.hpp"

namespace nf12::cpu {

template <class V, class T>
struct Tiled {
  static constexpr int kGroupTokens = 16;
  static constexpr int kGroups = 4;     // tile registers 0..3: sums
  static constexpr int kLeftTile = 4;   // 4, 5: the halves of a weight tile
  static constexpr int kRightTile = 6;  // 6, 7: the same of x
  static constexpr int kHalfColumns = kTileColumns / 2;
  static constexpr int kFactor = kHalfColumns * kGroupTokens;  // elements of a right factor

  NF12_INLINE static int64_t groups_of(int64_t m) {
    return m / kGroupTokens + (m % kGroupTokens != 0);
  }
  static size_t workspace_bytes(int64_t m, int64_t, int64_t k) {
    return sizeof(uint16_t) * static_cast<size_t>(tile_columns(k) * groups_of(m) * 2 * kFactor);
  }

  NF12_INLINE static void to_lane_order(const uint16_t* row, uint16_t* out) {
    for (int half = 0; half < V::kHalves; ++half) {
      typename V::Pairs pairs[2];
      V::load_lane_order(row, half, pairs);
      V::store(out + 4 * V::kPairLanes * half, pairs[0]);
      V::store(out + 4 * V::kPairLanes * half + 2 * V::kPairLanes, pairs[1]);
    }
  }

  // One group of tokens of one tile column.
  NF12_INLINE static void pack_group(const GemmArgs& args, int64_t c, int64_t group,
                                     uint16_t* out) {
    const int64_t t0 = group * kGroupTokens;
    for (int64_t t = 0; t < kGroupTokens; ++t) {
      alignas(64) uint16_t in_order[kTileColumns] = {};
      uint16_t copy[kTileColumns];
      if (t0 + t < args.m) to_lane_order(columns_of(args, c, t0 + t, copy), in_order);
      for (int pair = 0; pair < kTileColumns / 2; ++pair) {
        std::memcpy(out + 2 * (kGroupTokens * pair + t), in_order + 2 * pair, 2 * sizeof(uint16_t));
      }
    }
  }

  NF12_INLINE static void pack_activations(const GemmArgs& args, const Parallel& parallel) {
    const int64_t groups = groups_of(args.m);
    auto* x = static_cast<uint16_t*>(args.workspace);
    parallel_for(parallel, tile_columns(args.w.k) * groups, grain_for(2 * kFactor),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     pack_group(args, i / groups, i % groups, x + i * 2 * kFactor);
                   }
                 });
  }

  // Sums of group kGroup += a decoded tile times that group's x, [2, kFactor].
  template <int kGroup>
  NF12_INLINE static void multiply_group(const uint16_t* x) {
    T::template load<kRightTile>(x + kGroup * 2 * kFactor, 64);
    T::template multiply_add<kGroup, kLeftTile, kRightTile>();
    T::template load<kRightTile + 1>(x + kGroup * 2 * kFactor + kFactor, 64);
    T::template multiply_add<kGroup, kLeftTile + 1, kRightTile + 1>();
  }

  // 16 x 16, squares of kPairLanes at a time.
  NF12_INLINE static void turn(const float* in, float* out) {
    constexpr int kSide = V::kPairLanes;
    for (int i = 0; i < kTileRows; i += kSide) {
      for (int j = 0; j < kGroupTokens; j += kSide) {
        typename V::Pairs square[kSide];
        NF12_UNROLL_REGISTERS for (int s = 0; s < kSide; ++s) square[s] =
            V::load(in + kGroupTokens * (i + s) + j);
        V::transpose_square(square);
        NF12_UNROLL_REGISTERS for (int s = 0; s < kSide; ++s)
            V::store(out + kTileRows * (j + s) + i, square[s]);
      }
    }
  }

  // A tile register of sums [16 rows, 16 tokens] to y.
  template <int kGroup>
  NF12_INLINE static void finish_group(const GemmArgs& args, int64_t r, int64_t group) {
    alignas(64) float by_row[kTileRows * kGroupTokens];
    alignas(64) float by_token[kGroupTokens * kTileRows];
    T::template store<kGroup>(by_row, 64);
    turn(by_row, by_token);
    const int64_t t0 = (group + kGroup) * kGroupTokens;
    const int64_t tokens = args.m - t0 < kGroupTokens ? args.m - t0 : kGroupTokens;
    finish_row_block(args, r, t0, tokens, by_token);
  }

  // Row block r for the token groups first .. first + sizeof...(kGroup) - 1.
  template <int... kGroup>
  NF12_INLINE static void multiply_row_block(const GemmArgs& args, int64_t r, int64_t first,
                                             std::integer_sequence<int, kGroup...>) {
    const PackedView& w = args.w;
    const int64_t tiles = tile_columns(w.k);
    const int64_t x_tile_stride = groups_of(args.m) * 2 * kFactor;
    const auto* x = static_cast<const uint16_t*>(args.workspace) + first * 2 * kFactor;
    const int64_t t0 = first * kGroupTokens;
    constexpr int64_t kTokens = sizeof...(kGroup) * kGroupTokens;
    prefetch_outputs(args, r, t0, args.m - t0 < kTokens ? args.m - t0 : kTokens);
    prefetch_index(w, r + 1);
    alignas(64) DecodedTile<V> decoded[2];
    const auto decode = [&](int64_t c) {
      const uint8_t* tile = w.tile(r, c);
      decoded[c % 2].fill(w, tile, w.index_word(r, c), tile + kPrefetchTiles * kTileBytes);
    };
    (T::template zero<kGroup>(), ...);
    decode(0);
    for (int64_t c = 0; c < tiles; ++c, x += x_tile_stride) {
      const uint16_t* bits = decoded[c % 2].bits;
      T::template load<kLeftTile>(bits, 2 * kTileColumns);
      T::template load<kLeftTile + 1>(bits + kHalfColumns, 2 * kTileColumns);
      (multiply_group<kGroup>(x), ...);
      if (c + 1 < tiles) decode(c + 1);
    }
    (finish_group<kGroup>(args, r, first), ...);
  }

  template <int kCount>
  NF12_INLINE static void multiply_groups(const GemmArgs& args, int64_t r, int64_t first) {
    multiply_row_block(args, r, first, std::make_integer_sequence<int, kCount>{});
  }

  static void run(const GemmArgs& args, const Parallel& parallel) {
    pack_activations(args, parallel);
    const int64_t groups = groups_of(args.m);
    for_row_blocks(args, parallel, [&](int64_t begin, int64_t end) {
      T::begin();
      for (int64_t r = begin; r < end; ++r) {
        int64_t first = 0;
        for (; groups - first >= kGroups; first += kGroups) multiply_groups<4>(args, r, first);
        if (groups - first == 3) multiply_groups<3>(args, r, first);
        if (groups - first == 2) multiply_groups<2>(args, r, first);
        if (groups - first == 1) multiply_groups<1>(args, r, first);
      }
      T::end();
    });
  }
};

}  // namespace nf12::cpu
