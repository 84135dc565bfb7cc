// From a problem to the launch of a wide kernel. Host code; pure.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "csrc/gemm/forms.hpp"
#include "csrc/gemm/grid.hpp"
#include "csrc/gemm/wide/instances/configs.hpp"
#include "csrc/gemm/wide/once_plan.hpp"
#include "csrc/gemm/wide/params.hpp"

namespace nf12 {

// How the outputs are shared out.
struct WideShape {
  int tokens = 0;          // of a tile; 0: no kernel takes the problem
  bool once = false;       // every weight decoded once, to memory
  int blocks = 0;          // of a launch
  int shared_tiles = 0;    // of `tiles`, whose k-blocks the blocks share out
  int sharers = 0;         // blocks of each of them; 0: stretches alike
  int64_t row_blocks = 0;  // of a launch, 128 rows each; once: as many as the workspace holds
  int64_t ns = 0;          // that a model says it takes
};

constexpr int64_t wide_row_blocks(int64_t n) { return (n + kWideRows - 1) / kWideRows; }

// What a tile of so many tokens costs a block, in nanoseconds: fitted to the forms of eight shapes
// (H200, 2026-11-30, m 128 to 2048). `shared`: where stretches are alike; `helper`: each block that
// an owner has, of 192 tokens presumed.
struct WideCost {
  int block, start;  // a k-block; beside them
  int block_shared, start_shared;
  int helper;
};
constexpr WideCost wide_cost(int tokens) {
  return tokens == 128   ? WideCost{565, 2500, 590, 7500, 1600}
         : tokens == 192 ? WideCost{725, 2500, 745, 7500, 1800}
                         : WideCost{800, 2500, 830, 8300, 2000};
}
// An owner waits for the others' sums, which take as long as so many k-blocks (1536 x 8960, 13 a
// stretch: 19.2 us for 192 tokens and 22.0 for 256; H200, 2026-11-30).
inline constexpr int64_t kShortestStretch = 16;
// Decoding once: a k-block, and the million weights that are written and read again.
inline constexpr int kOnceBlockNs = 700, kOnceStartNs = 10500, kOnceMillionNs = 300;

// K-blocks that the owner of a tile has more than each block that helps: as long as their sums need
// to get there (H200, 2026-11-30, 22 launches, 0 to 12 by threes: with 6 all are within 2 % of the
// best, with 3 within 4 %, with 0 within 10 %).
inline constexpr int kWideLag = 6;
constexpr int64_t wide_own(int64_t columns, int64_t sharers) {
  return std::min(columns - (sharers - 1),
                  (columns + (sharers - 1) * kWideLag + sharers - 1) / sharers);
}

// Decoded weights of a launch that decodes once; past them the rows take several launches.
inline constexpr int64_t kOnceBytes = int64_t{256} << 20;

struct WideCard {
  int processors;
  int clusters;      // of two blocks that run at once; 0: none
  uint32_t kernels;  // bit i: kWideTokens[i]
  bool once;
};

// The shape that a model of the time finds fastest. A block has ceil(tiles / blocks) tiles, or as
// many k-blocks as all others where they are shared out; no kernel, no tokens.
constexpr WideShape wide_shape(const WideCard& card, int64_t n, int64_t k, int64_t m) {
  const int64_t columns = tile_columns(k), row_blocks = wide_row_blocks(n);
  WideShape best;
  int64_t least = INT64_MAX;
  const auto offer = [&](const WideShape& shape, int64_t time) {
    if (time >= least) return;
    least = time;
    best = shape;
    best.ns = time;
  };
  const auto offer_tiles_of = [&](int tokens) {
    const int64_t tiles = (m + tokens - 1) / tokens * row_blocks;
    if (tiles * columns > INT32_MAX / 2) return;  // walks count k-blocks by 31 bits
    const WideCost cost = wide_cost(tokens);
    const int64_t processors = card.processors, blocks = std::min(tiles, processors);
    const auto offer_blocks = [&](int64_t launched, int64_t shared, int64_t sharers, int64_t time) {
      offer({.tokens = tokens,
             .blocks = static_cast<int>(launched),
             .shared_tiles = static_cast<int>(shared),
             .sharers = static_cast<int>(sharers),
             .row_blocks = row_blocks},
            time);
    };
    offer_blocks(blocks, 0, 0, (tiles + blocks - 1) / blocks * columns * cost.block + cost.start);
    // All of them below two rounds; past that what is more than full rounds, and one round.
    const int64_t shared = tiles < 2 * processors ? tiles : tiles % processors + processors;
    if (tiles % processors == 0 || columns == 1 || shared * columns * (processors + 1) > INT32_MAX)
      return;
    if (const int64_t sharers = std::min(processors / tiles, columns); sharers > 1)
      offer_blocks(
          tiles * sharers, tiles, sharers,
          wide_own(columns, sharers) * cost.block + cost.start + (sharers - 1) * cost.helper);
    else
      offer_blocks(processors, shared, 0,
                   std::max((tiles * columns + processors - 1) / processors, kShortestStretch) *
                           cost.block_shared +
                       cost.start_shared);
  };
  for (int i = 0; i < 3; ++i) {
    if ((card.kernels >> i & 1) != 0) offer_tiles_of(kWideTokens[i]);
    if (best.tokens >= m) break;  // a larger tile would only be emptier
  }
  if (card.once && card.clusters > 0 && m > kOnceTokens) {
    const int64_t most = std::max<int64_t>(kOnceBytes / (columns * kOnceBlockBytes), kOnceBlocks);
    const int64_t launches = (row_blocks + most - 1) / most;
    // An even number, so that no cluster but the last has a block without rows.
    const int64_t each = ((row_blocks + launches - 1) / launches + 1) / kOnceBlocks * kOnceBlocks;
    const int64_t token_tiles = (m + kOnceTokens - 1) / kOnceTokens;
    const int64_t pairs = token_tiles * (each / kOnceBlocks);
    const int64_t clusters = std::min<int64_t>(pairs, card.clusters);
    const int64_t time =
        launches * ((pairs + clusters - 1) / clusters * columns * kOnceBlockNs + kOnceStartNs) +
        row_blocks * columns * (kWideRows * kWideColumns) / 1000 * kOnceMillionNs / 1000;
    if (pairs <= INT32_MAX / 2)
      offer({.tokens = kOnceTokens,
             .once = true,
             .blocks = static_cast<int>(kOnceBlocks * clusters),
             .row_blocks = each},
            time);
  }
  return best;
}

// Rows at multiples of 16 bytes the caller has seen to; what the tensor unit wants besides.
constexpr bool wide_takes(const PackedView& weight) {
  return weight.k % kTileColumns == 0 && weight.n <= INT32_MAX - kWideRows &&
         (weight.n <= kTileRows ||
          (weight.payload_stride_bytes >= tile_columns(weight.k) * kTileBytes &&
           weight.payload_stride_bytes < int64_t{1} << 40));
}

// ---- what the tensor unit copies ----

constexpr TensorLayout encoded_layout(const PackedView& w) {
  const int64_t bytes = tile_columns(w.k) * kTileBytes;
  return {w.payload,
          8,
          bytes / 8,
          tile_rows(w.n),
          w.n > kTileRows ? w.payload_stride_bytes : bytes,
          kTileBytes / 8,
          kWideTileRows,
          false};
}
constexpr TensorLayout y_layout(const GemmParams& p) {
  const int64_t n = p.weight.n;
  return {p.y, 2, n, p.m, row_stride_bytes(p.y_stride, n, p.m), 64, 64, true};
}

// ---- launches ----

// Sets what follows from the shape. p.gemm: of this launch.
constexpr Grid wide_grid(const WideShape& shape, WideParams& p) {
  p.columns = static_cast<int32_t>(tile_columns(p.gemm.weight.k));
  p.token_tiles = (p.gemm.m + shape.tokens - 1) / shape.tokens;
  const auto rows = static_cast<int32_t>(wide_row_blocks(p.gemm.weight.n));
  p.tiles = p.token_tiles * (shape.once ? (rows + kOnceBlocks - 1) / kOnceBlocks : rows);
  p.shared_tiles = shape.shared_tiles;
  p.sharers = shape.sharers;
  p.own = shape.sharers > 0 ? static_cast<int32_t>(wide_own(p.columns, shape.sharers)) : 0;
  p.blocks = shape.once ? std::min(shape.blocks, kOnceBlocks * p.tiles) : shape.blocks;
  p.gemm.splits = 1;
  return {p.blocks, 1, kWideThreads};
}

constexpr Grid once_grid(const WideShape& shape, OnceParams& p) {
  const Grid grid = wide_grid(shape, p.wide);
  const int clusters = p.wide.blocks / kOnceBlocks;
  p.row_blocks = static_cast<int32_t>(wide_row_blocks(p.wide.gemm.weight.n));
  p.groups = (p.wide.columns + kOnceGroup - 1) / kOnceGroup;
  p.together = std::min(p.row_blocks,
                        kOnceBlocks * ((clusters + p.wide.token_tiles - 1) / p.wide.token_tiles));
  return grid;
}

// Memory of a launch, as the kernel finds it behind one pointer: flags, then sums.
constexpr size_t wide_flag_bytes(const WideShape& shape) {
  return size_t{8} * kWideGroups * shape.blocks;  // a multiple of 16
}
constexpr size_t wide_sum_bytes(const WideShape& shape) {
  return sizeof(float) * kWideRows * shape.tokens * shape.blocks;
}
// Counts, then decoded weights from a multiple of 128 bytes on.
constexpr size_t once_count_bytes(const WideShape& shape, int64_t k) {
  const int64_t groups = (tile_columns(k) + kOnceGroup - 1) / kOnceGroup;
  return static_cast<size_t>((4 * (1 + shape.row_blocks * groups) + 127) / 128 * 128);
}
constexpr size_t wide_workspace_bytes(const WideShape& shape, int64_t k) {
  if (shape.once)
    return once_count_bytes(shape, k) +
           static_cast<size_t>(shape.row_blocks * tile_columns(k) * kOnceBlockBytes);
  return shape.shared_tiles > 0 ? wide_flag_bytes(shape) + wide_sum_bytes(shape) : 0;
}

constexpr int wide_shared_bytes(const WideShape& shape) {
  if (shape.once) return OncePlan<kOnceTokens>::kSharedBytes;
  return with_tokens<kWideTokens>(shape.tokens, []<int t>(std::integral_constant<int, t>) {
    return WidePlan<wide_config(t)>::kSharedBytes;
  });
}

}  // namespace nf12
