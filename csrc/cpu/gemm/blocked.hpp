// Many tokens: y = x W^T with each tile decoded once into the first-level cache.
//
// Bound by arithmetic: a register holds rows of W (outputs), and one step multiplies it with one
// activation of each of up to kTokens tokens, broadcast from memory. Sums of kTokens x 16 outputs
// stay in registers while kChunkTiles tiles pass, then wait in `sums` for the next chunk. Nothing
// is added up across lanes at the end.
//
// A thread owns whole 16-row blocks. Above kMaxTokens tokens a row block is decoded again for each
// kMaxTokens of them, which costs 2 % of their arithmetic and bounds the sums (8 KiB).
#pragma once
#include <utility>

#include "csrc/cpu/gemm/activations.hpp"
#include "csrc/cpu/gemm/epilogue.hpp"
#include "csrc/cpu/gemm/patch.hpp"
#include "csrc/cpu/gemm/prefetch.hpp"
#include "csrc/cpu/gemm/unroll.hpp"

namespace nf12::cpu {

template <class V>
struct Blocked {
  using X = typename V::X;
  using W = typename V::W;
  using Rows = typename V::Rows;
  using Sum = typename V::Sum;
  static constexpr int kRegisters = kTileRows / V::kRowLanes;
  static constexpr int kPanel = V::kSteps * kTileRows;  // elements of a tile, rows along a register
  static constexpr int kChunkTiles = 8 * 1024 / (kPanel * static_cast<int>(sizeof(W)));
  static constexpr int kMaxTokens = 128;

  // Decoded tiles, and the payload of as many tiles that come after them.
  struct Panels {
    const W* data;
    int64_t tiles;
    const uint8_t* ahead;
  };

  // Sums [kTokens, 16] += x of kTokens tokens times the panels.
  template <int kTokens>
  static void multiply_panels(const Panels& panels, const X* x, int64_t x_tile_stride,
                              float* sums) {
    constexpr int kSlices = 8;
    const W* panel = panels.data;
    Sum part[kTokens][kRegisters];
    NF12_UNROLL_REGISTERS for (int t = 0; t < kTokens; ++t) {
      NF12_UNROLL_REGISTERS for (int i = 0; i < kRegisters; ++i) {
        part[t][i] = V::load_sum(sums + t * kTileRows + i * V::kRowLanes);
      }
    }
    for (int64_t c = 0; c < panels.tiles; ++c, x += x_tile_stride) {
      for (int slice = 0; slice < kSlices; ++slice) {
        prefetch_part<kSlices>(panels.ahead + c * kTileBytes, slice);
        const X* x_slice = x + slice * (kTileColumns / kSlices);
        NF12_UNROLL_REGISTERS for (int step = 0; step < V::kSteps / kSlices; ++step) {
          Rows rows[kRegisters];
          NF12_UNROLL_REGISTERS for (int i = 0; i < kRegisters; ++i) {
            rows[i] = V::load_rows(panel + step * kTileRows + i * V::kRowLanes);
          }
          NF12_UNROLL_REGISTERS for (int t = 0; t < kTokens; ++t) {
            const X* x_row = x_slice + t * kTileColumns;
            NF12_UNROLL_REGISTERS for (int i = 0; i < kRegisters; ++i) {
              part[t][i] = V::multiply_add_rows(rows[i], x_row, step, part[t][i]);
            }
          }
        }
        panel += kPanel / kSlices;
      }
    }
    NF12_UNROLL_REGISTERS for (int t = 0; t < kTokens; ++t) {
      NF12_UNROLL_REGISTERS for (int i = 0; i < kRegisters; ++i) {
        V::store_sum(sums + t * kTileRows + i * V::kRowLanes, part[t][i]);
      }
    }
  }

  using Multiply = void (*)(const Panels&, const X*, int64_t, float*);

  // The tokens of a block in groups as equal as can be: 8 tokens are 4 + 4, not 6 + 2.
  struct Groups {
    int64_t count, small, larger;  // `larger` groups have small + 1 tokens

    NF12_INLINE explicit Groups(int64_t tokens)
        : count((tokens + V::kTokens - 1) / V::kTokens),
          small(tokens / count),
          larger(tokens % count) {}
    NF12_INLINE int64_t size(int64_t i) const { return small + (i < larger); }
  };

  template <int... kSizes>
  NF12_INLINE static Multiply multiply_for(int64_t size, std::integer_sequence<int, kSizes...>) {
    static constexpr Multiply kTable[] = {multiply_panels<kSizes + 1>...};
    return kTable[size - 1];
  }

  NF12_INLINE static void multiply_row_block(const GemmArgs& args, const Activations<X>& x,
                                             int64_t r, int64_t t0, int64_t tokens) {
    const PackedView& w = args.w;
    const int64_t tiles = tile_columns(w.k);
    const Groups groups(tokens);
    prefetch_outputs(args, r, t0, tokens);
    prefetch_index(w, r + 1);
    alignas(64) float sums[kMaxTokens * kTileRows];
    for (int64_t i = 0; i < tokens * kTileRows; ++i) sums[i] = 0.0f;
    for (int64_t c0 = 0; c0 < tiles; c0 += kChunkTiles) {
      const int64_t chunk = tiles - c0 < kChunkTiles ? tiles - c0 : kChunkTiles;
      alignas(64) W decoded[kChunkTiles * kPanel];
      for (int64_t c = 0; c < chunk; ++c) {
        const uint8_t* tile = w.tile(r, c0 + c);
        W* panel = decoded + c * kPanel;
        V::decode_panel(tile, panel);
        if (const uint32_t index_word = w.index_word(r, c0 + c)) {
          patch_tile(w, index_word, [panel](int position, uint16_t value) {
            V::put(panel, position / kTileColumns, position % kTileColumns, value);
          });
        }
      }
      const Panels panels{decoded, chunk, w.tile(r, c0 + chunk)};
      int64_t t = 0;
      for (int64_t g = 0; g < groups.count; t += groups.size(g), ++g) {
        multiply_for(groups.size(g), std::make_integer_sequence<int, V::kTokens>{})(
            panels, x.at(c0, t0 + t), args.m * kTileColumns, sums + t * kTileRows);
      }
    }
    finish_row_block(args, r, t0, tokens, sums);
  }

  NF12_INLINE static void run(const GemmArgs& args, const Parallel& parallel) {
    const Activations<X> x = prepare_activations<X>(
        args, parallel, [](const uint16_t* row, X* out) { V::expand_x(row, out); });
    for_row_blocks(args, parallel, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t t0 = 0; t0 < args.m; t0 += kMaxTokens) {
          const int64_t tokens = args.m - t0 < kMaxTokens ? args.m - t0 : kMaxTokens;
          multiply_row_block(args, x, r, t0, tokens);
        }
      }
    });
  }
};

}  // namespace nf12::cpu
