// Few tokens: y = x W^T with the weights decoded in registers as they stream by.
//
// Bound by memory: a tile is read once, in the order in which it lies. A thread owns whole 16-row
// blocks and walks their tiles along k; each row's columns lie along a register, so that a sum is a
// register of partial sums which are added up once, after the last tile. The 16 x m sums live on
// the stack (L1) and visit registers kRows rows at a time. Several rows at a time hide the latency
// of the multiply-adds and share each load of x.
//
// A tile with escapes is decoded to 2 KiB, patched there, and multiplied from there by the same
// code.
#pragma once
#include "csrc/cpu/gemm/activations.hpp"
#include "csrc/cpu/gemm/epilogue.hpp"
#include "csrc/cpu/gemm/prefetch.hpp"
#include "csrc/cpu/gemm/tile.hpp"
#include "csrc/cpu/gemm/unroll.hpp"

namespace nf12::cpu {

template <class V, int kTokens>
struct Fused {
  using X = typename V::X;
  using Sum = typename V::Sum;
  static constexpr int kRows = 2;  // rows at a time, each with kTokens sums

  template <class Tile>
  NF12_INLINE static void multiply_rows(const Tile& tile, int row, const X* x, Sum* sums) {
    Sum part[kRows][kTokens];
    NF12_UNROLL_REGISTERS for (int i = 0; i < kRows; ++i) {
      NF12_UNROLL_REGISTERS for (int t = 0; t < kTokens; ++t) part[i][t] =
          sums[(row + i) * kTokens + t];
    }
    NF12_UNROLL_REGISTERS for (int half = 0; half < V::kHalves; ++half) {
      NF12_UNROLL_REGISTERS for (int i = 0; i < kRows; ++i) {
        typename V::Pairs w[2];
        tile.load(row + i, half, w);
        NF12_UNROLL_REGISTERS for (int j = 0; j < 2; ++j) {
          const X* x_part = x + 2 * V::kPairLanes * (2 * half + j);
          NF12_UNROLL_REGISTERS for (int t = 0; t < kTokens; ++t) {
            part[i][t] = V::multiply_add(w[j], x_part + kTileColumns * t, part[i][t]);
          }
        }
      }
    }
    NF12_UNROLL_REGISTERS for (int i = 0; i < kRows; ++i) {
      NF12_UNROLL_REGISTERS for (int t = 0; t < kTokens; ++t) sums[(row + i) * kTokens + t] =
          part[i][t];
    }
  }

  template <class Tile>
  NF12_INLINE static void multiply_tile(const Tile& tile, const uint8_t* ahead, const X* x,
                                        Sum* sums) {
#pragma GCC unroll 1
    for (int row = 0; row < kTileRows; row += kRows) {
      prefetch_part<kTileRows / kRows>(ahead, row / kRows);
      multiply_rows(tile, row, x, sums);
    }
  }

  NF12_INLINE static void multiply_row_block(const GemmArgs& args, const Activations<X>& x,
                                             int64_t r) {
    const PackedView& w = args.w;
    prefetch_outputs(args, r, 0, kTokens);
    prefetch_index(w, r + 1);
    Sum sums[kTileRows * kTokens];
    for (Sum& sum : sums) sum = V::zero();
    const uint8_t* tile = w.tile(r, 0);
    for (int64_t c = 0; c < tile_columns(w.k); ++c, tile += kTileBytes) {
      const uint8_t* ahead = tile + kPrefetchTiles * kTileBytes;
      const uint32_t index_word = w.index_word(r, c);
      if (index_word == 0) [[likely]] {
        multiply_tile(PackedTile<V>{tile}, ahead, x.at(c, 0), sums);
      } else {
        alignas(64) DecodedTile<V> decoded;
        decoded.fill(w, tile, index_word, ahead);
        multiply_tile(decoded, ahead, x.at(c, 0), sums);
      }
    }
    float totals[kTokens][kTileRows];
    for (int row = 0; row < kTileRows; ++row) {
      for (int t = 0; t < kTokens; ++t) totals[t][row] = V::total(sums[row * kTokens + t]);
    }
    finish_row_block(args, r, 0, kTokens, totals[0]);
  }

  NF12_INLINE static void run(const GemmArgs& args, const Parallel& parallel) {
    const auto to_x = [](const uint16_t* row, X* out) {
      for (int half = 0; half < V::kHalves; ++half) {
        typename V::Pairs pairs[2];
        V::load_lane_order(row, half, pairs);
        V::store_x(out + 4 * V::kPairLanes * half, pairs[0]);
        V::store_x(out + 4 * V::kPairLanes * half + 2 * V::kPairLanes, pairs[1]);
      }
    };
    const Activations<X> x = prepare_activations<X>(args, parallel, to_x);
    for_row_blocks(args, parallel, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) multiply_row_block(args, x, r);
    });
  }
};

}  // namespace nf12::cpu
