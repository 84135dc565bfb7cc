// Fused small-m GEMM: y[t, j] = sum_k x[t, k] W[j, k], each weight decoded once for all tokens.
//
// Bound by the bytes of the weights; everything else is kept out of their way.
//   - A lane owns one row of W. Lanes 0..15 are the rows of tile row 2b, lanes 16..31 those of tile
//     row 2b+1, so the whole wave works on the same 64 columns, and x is uniform: it comes through
//     the scalar cache into scalar registers and costs neither LDS reads nor vector registers.
//   - A lane reads 96 bytes of its row (64 sign-mantissa, 32 codes), one 16-byte load each, and its
//     dot products need no other lane: no shuffle, no cross-lane sum.
//   - The waves of a block share out the tile columns (wave w takes w, w + waves, ...), so that a
//     block streams adjacent tiles; their sums meet once, in a plane of shared memory.
//   - blockIdx.y splits the columns further where n does not fill the card: such a launch writes
//     FP32 partials, and combine.hpp adds them.
//
//                 64 columns of tile column c
//               +-----------------------------+
//   lane  0     | row 32b      tile row 2b    |      x[t, 64c .. 64c+63]: 32 scalar registers
//   lane 15     | row 32b + 15                |      acc[t][0] even pairs, acc[t][1] odd pairs
//               +-----------------------------+
//   lane 16     | row 32b + 16 tile row 2b+1  |
//   lane 31     | row 32b + 31                |
//               +-----------------------------+
//
// Order of a sum (the reference in the tests follows it): columns of a wave ascending, even and odd
// pairs apart, acc[t][0] + acc[t][1], then the waves ascending, then the splits ascending.
// Not handled: m other than the compiled token count; it belongs to the caller.
#pragma once
#include "csrc/format/decode_registers.hpp"
#include "csrc/gemm/config.hpp"
#include "csrc/gemm/epilogue.hpp"
#include "csrc/gemm/fused/patch.hpp"
#include "csrc/gemm/params.hpp"

namespace nf12 {

template <GemmConfig config>
struct FusedPlan {
  static constexpr int kTokens = config.tokens;
  static constexpr int kWaves = config.waves;
  static constexpr int kAhead = config.pairs_ahead;
  static constexpr int kChunk = config.decode_columns / 2;  // BF16 pairs decoded at once
  static constexpr int kChunks = kTileColumns / config.decode_columns;
  static constexpr int kBlockRows = 2 * kTileRows;

  // Tokens whose x is fetched together, for 32 columns: two such groups, one in use and one in
  // flight, are 64 of the 106 scalar registers.
  static constexpr int kGroupTokens = kTokens < 2 ? kTokens : 2;
  static constexpr int kGroupPairs = 16;
  static constexpr int kTokenGroups = (kTokens + kGroupTokens - 1) / kGroupTokens;

  static constexpr int kSumFloats = kWaves * kTokens * kBlockRows;
  static constexpr int kPlaneFloats =
      kSumFloats * 4 < config.plane_bytes ? config.plane_bytes / 4 : kSumFloats;

  static_assert(kTokens >= 1 && kTokens <= 16);
  static_assert(kBlockRows == arch::kWave, "a lane owns a row");
  static_assert(kChunks == 1 || kChunks == 2);
  static_assert(kChunk % kGroupPairs == 0);
  static_assert(kAhead == 1 || kAhead == 2);
};

// A lane's row of one tile, undecoded.
struct LaneRow {
  arch::Words<4> signs[4];  // sign-mantissa of columns 16i .. 16i+15
  arch::Words<4> codes[2];  // codes of columns 32i .. 32i+31
};

// The tile columns [begin, end) of this block's split; from `checked` on, x is read with bounds.
struct SplitColumns {
  int begin, checked, end;
};

NF12_DEVICE SplitColumns columns_of_split(const GemmParams& p) {
  const int total = tile_columns_of(p.weight);
  const int begin = arch::block_y() * p.columns_per_split;
  const int stop = begin + p.columns_per_split;
  const int end =
      arch::in_register(stop < total ? stop : total);  // else one vector min3 with below
  const int checked = arch::in_register(p.scalar_columns < end ? p.scalar_columns : end);
  return {begin, checked < begin ? begin : checked, end};
}

// Two tiles of a tile column, one above the other. The pointers are uniform and walk along the tile
// columns; the offsets tell the lanes apart.
struct WeightCursor {
  const uint8_t* tiles;   // of tile row 2b
  const uint32_t* index;  // word of tile row 2b
  uint32_t index_offset;  // from there to the word of tile row 2b+1, in bytes
  uint32_t signs_offset;  // this lane's row, from `tiles`
  uint32_t codes_offset;  // likewise, from `tiles + kCodesOffset`
};

NF12_DEVICE WeightCursor open_rows(const PackedView& weight, int column) {
  const int first = 2 * arch::in_register(arch::block_x());
  // An odd last tile row: the upper lanes repeat it and their sums are dropped.
  const int second = first + 1 < tile_rows_of(weight) ? first + 1 : first;
  const int64_t stride = arch::in_register(weight.payload_stride_bytes);
  const uint32_t below = arch::in_register(static_cast<uint32_t>(stride) * (second - first));
  const uint32_t tile_offset = arch::lane() < kTileRows ? 0u : below;
  const int row = arch::lane() % kTileRows;
  const int64_t index_stride = arch::in_register(weight.index_stride);
  return {arch::in_register(weight.payload + first * stride + int64_t{column} * kTileBytes),
          arch::in_register(weight.index + first * index_stride + column),
          arch::in_register(static_cast<uint32_t>(index_stride) * 4 * (second - first)),
          tile_offset + sign_mantissa_byte(row, 0),
          tile_offset + code_word_byte(row, 0) - kCodesOffset};
}

// `step` while there is something left, else 0. In scalar steps that the compiler cannot join: as a
// condition it would become a vector select, and every pointer that takes the step with it.
NF12_DEVICE int step_if(int left, int step) {
  left = arch::in_register(left);
  const int at_most_one = arch::in_register(left < 1 ? left : 1);
  return (at_most_one < 0 ? 0 : at_most_one) * step;
}

// Six loads, issued together: they consume whole cache lines before those can be evicted.
// Past the end (`wanted` is uniform) every lane reads the same 16 bytes instead. A branch around
// the loads would leave their number unknown, and every later wait would be for all of them.
NF12_DEVICE LaneRow load_row(const WeightCursor& cursor, bool wanted) {
  const uint32_t signs_offset = wanted ? cursor.signs_offset : 0;
  const uint32_t codes_offset = wanted ? cursor.codes_offset : 0;
  LaneRow row;
  NF12_UNROLL
  for (int half = 0; half < 2; ++half) {
    const uint8_t* codes = cursor.tiles + kCodesOffset + 16 * half;
    const uint8_t* signs = cursor.tiles + 32 * half;
    row.codes[half] = arch::load_stream16(codes, codes_offset);
    row.signs[2 * half] = arch::load_stream16(signs, signs_offset);
    row.signs[2 * half + 1] = arch::load_stream16(signs + 16, signs_offset);
  }
  return row;
}

NF12_DEVICE void load_index(const WeightCursor& cursor, uint32_t (&index)[2]) {
  index[0] = arch::uniform_load<1>(cursor.index, 0).w[0];
  index[1] = arch::uniform_load<1>(cursor.index, cursor.index_offset).w[0];
}

template <int pairs>
NF12_DEVICE void decode_chunk(const LaneRow& row, int chunk, const DecodeConstants& mask,
                              uint32_t (&w)[pairs]) {
  NF12_UNROLL
  for (int word = 0; word < pairs / 4; ++word) {
    const int i = chunk * pairs / 4 + word;  // code word: columns 8i .. 8i+7
    const uint32_t codes = row.codes[i / 4].w[i % 4];
    const uint32_t* signs = &row.signs[i / 2].w[i % 2 * 2];
    decode_eight(signs, codes, mask, &w[4 * word]);
    NF12_UNROLL
    for (int i = 0; i < 4; ++i) arch::settle(w[4 * word + i]);
    if (word % 2 == 1) arch::hold_order();
  }
}

template <GemmConfig config>
struct Sums {
  float acc[FusedPlan<config>::kTokens][2];
};

// x of a few tokens over 32 columns, in scalar registers.
template <GemmConfig config>
struct TokenGroup {
  arch::Words<16> token[FusedPlan<config>::kGroupTokens];
};

// Everything a wave holds of the tile columns to come.
template <GemmConfig config>
struct Pipeline {
  LaneRow rows[FusedPlan<config>::kAhead];
  uint32_t index[2];
  TokenGroup<config> x;
  const uint16_t* x_columns;  // the 32 columns that x belongs to, token 0
  uint32_t x_offset;          // from there to the next group's first token, in bytes
};

// Group `group` of a tile column: tokens vary fastest, then the two halves of the 64 columns.
// Pointer and offset walk: computed anew, each group's address would be kept in scalar registers of
// its own, and there are not that many.
template <GemmConfig config>
NF12_DEVICE void load_tokens(uint32_t x_stride_bytes, int group, Pipeline<config>& next) {
  using Plan = FusedPlan<config>;
  const int first = group % Plan::kTokenGroups * Plan::kGroupTokens;
  if (first == 0) {
    if (group > 0) next.x_columns += 2 * Plan::kGroupPairs;
    next.x_columns = arch::in_register(next.x_columns);
    next.x_offset = 0;
  }
  NF12_UNROLL
  for (int t = 0; t < Plan::kGroupTokens; ++t) {
    if (first + t >= Plan::kTokens) break;
    next.x.token[t] = arch::uniform_load<16>(next.x_columns, next.x_offset);
    next.x_offset = arch::in_register(next.x_offset + x_stride_bytes);
  }
}

template <GemmConfig config, int pairs>
NF12_DEVICE void multiply_group(const TokenGroup<config>& x, int group, const uint32_t (&w)[pairs],
                                Sums<config>& sums) {
  using Plan = FusedPlan<config>;
  const int first = group % Plan::kTokenGroups * Plan::kGroupTokens;
  const int slot = group / Plan::kTokenGroups * Plan::kGroupPairs % pairs;
  NF12_UNROLL
  for (int i = 0; i < Plan::kGroupPairs; ++i) {
    NF12_UNROLL
    for (int t = 0; t < Plan::kGroupTokens; ++t)
      if (first + t < Plan::kTokens)
        sums.acc[first + t][i % 2] =
            arch::dot2(w[slot + i], x.token[t].w[i], sums.acc[first + t][i % 2]);
  }
  NF12_UNROLL
  for (int t = 0; t < Plan::kGroupTokens; ++t)
    if (first + t < Plan::kTokens)
      for (float& acc : sums.acc[first + t]) arch::settle(acc);
}

// One pair of tiles; `left` tile columns of this wave remain, this one included. None are left in
// the second half of the last round when their number is odd: then only the loads happen, because a
// path around them would make every wait of the loop one for all of them.
template <GemmConfig config>
NF12_DEVICE void multiply_pair(const GemmParams& p, uint32_t x_stride_bytes,
                               const DecodeConstants& mask, int left, WeightCursor& cursor,
                               LaneRow& row, Pipeline<config>& next, Sums<config>& sums) {
  using Plan = FusedPlan<config>;
  constexpr int kChunkGroups = Plan::kTokenGroups * Plan::kChunk / Plan::kGroupPairs;
  const uint32_t index[2] = {next.index[0], next.index[1]};
  NF12_UNROLL
  for (int chunk = 0; chunk < Plan::kChunks; ++chunk) {
    uint32_t w[Plan::kChunk];
    arch::hold_order();
    decode_chunk(row, chunk, mask, w);
    arch::hold_order();
    // Before the registers of `row` are filled again: the patches use them meanwhile.
    if (left > 0) patch_chunk(p, index, chunk, w);
    if (chunk == Plan::kChunks - 1) {
      cursor.tiles += step_if(left - Plan::kAhead, Plan::kWaves * kTileBytes);
      row = load_row(cursor, left > Plan::kAhead);
    }
    arch::hold_order();
    if (left <= 0) continue;
    NF12_UNROLL
    for (int i = 0; i < kChunkGroups; ++i) {
      const int group = chunk * kChunkGroups + i;
      TokenGroup<config> x = next.x;
      NF12_UNROLL
      for (int t = 0; t < Plan::kGroupTokens; ++t)
        if (group % Plan::kTokenGroups * Plan::kGroupTokens + t < Plan::kTokens)
          arch::arrive(x.token[t]);
      arch::hold_order();
      if (group + 1 < Plan::kChunks * kChunkGroups) {
        load_tokens<config>(x_stride_bytes, group + 1, next);
      } else {
        const int step = step_if(left - 1, Plan::kWaves);
        next.x_columns += step * kTileColumns - (kTileColumns - 2 * Plan::kGroupPairs);
        load_tokens<config>(x_stride_bytes, 0, next);
        cursor.index += step;
        load_index(cursor, next.index);
      }
      arch::hold_order();
      multiply_group<config>(x, group, w, sums);
    }
  }
}

// Whole tile columns, rows of x aligned to 4 bytes.
template <GemmConfig config>
NF12_DEVICE void multiply_columns(const GemmParams& p, Sums<config>& sums) {
  using Plan = FusedPlan<config>;
  const SplitColumns columns = columns_of_split(p);
  const int begin = columns.begin + arch::wave();
  int left = (columns.checked - begin + Plan::kWaves - 1) / Plan::kWaves;
  if (left <= 0) return;
  const DecodeConstants mask;
  const uint32_t x_stride_bytes = arch::in_register(static_cast<uint32_t>(2 * p.x_stride));
  WeightCursor cursor = open_rows(p.weight, begin);
  Pipeline<config> next;
  next.x_columns = arch::in_register(p.x + int64_t{begin} * kTileColumns);
  next.rows[0] = load_row(cursor, true);
  arch::hold_order();  // oldest first, as the loop waits for them
  if constexpr (Plan::kAhead == 2) {
    cursor.tiles += step_if(left - 1, Plan::kWaves * kTileBytes);
    next.rows[1] = load_row(cursor, left > 1);
    arch::hold_order();
  }
  load_tokens<config>(x_stride_bytes, 0, next);
  load_index(cursor, next.index);
  NF12_NO_UNROLL
  do {
    multiply_pair<config>(p, x_stride_bytes, mask, left--, cursor, next.rows[0], next, sums);
    if constexpr (Plan::kAhead == 2)
      multiply_pair<config>(p, x_stride_bytes, mask, left--, cursor, next.rows[1], next, sums);
  } while (left > 0);
}

// Tile columns that a scalar load of x may not touch: the last one when k is not a multiple of 64,
// or all of them when rows of x are not 4-byte aligned. Lane i fetches columns 2i and 2i+1, zero
// beyond k (the weights' padding is not zero), and hands them to the wave.
template <GemmConfig config>
NF12_DEVICE void multiply_checked(const GemmParams& p, Sums<config>& sums) {
  using Plan = FusedPlan<config>;
  const DecodeConstants mask;
  const SplitColumns columns = columns_of_split(p);
  const int first = columns.checked + arch::wave();
  const uint32_t x_columns = static_cast<uint32_t>(p.weight.k);
  WeightCursor cursor = open_rows(p.weight, first);
  NF12_NO_UNROLL
  for (int column = first; column < columns.end; column += Plan::kWaves) {
    const LaneRow row = load_row(cursor, true);
    uint32_t index[2];
    load_index(cursor, index);
    const uint32_t k = column * kTileColumns + 2 * arch::lane();
    const uint32_t even_offset = k < x_columns ? 2 * k : 0;
    const uint32_t odd_offset = k + 1 < x_columns ? 2 * k + 2 : 0;
    const uint32_t valid =
        (k < x_columns ? 0x0000FFFFu : 0) | (k + 1 < x_columns ? 0xFFFF0000u : 0);
    NF12_UNROLL
    for (int chunk = 0; chunk < Plan::kChunks; ++chunk) {
      uint32_t w[Plan::kChunk];
      decode_chunk(row, chunk, mask, w);
      patch_chunk(p, index, chunk, w);
      const uint16_t* x = p.x;
      NF12_UNROLL
      for (int t = 0; t < Plan::kTokens; ++t) {
        x = arch::in_register(x);  // walks down the tokens, as x_row does above
        const uint32_t even = arch::load2(x, even_offset);
        const uint32_t odd = arch::load2(x, odd_offset);
        const uint32_t own = (even | odd << 16) & valid;
        x += p.x_stride;
        NF12_UNROLL
        for (int i = 0; i < Plan::kChunk; ++i) {
          const uint32_t pair = arch::broadcast(own, chunk * Plan::kChunk + i);
          sums.acc[t][i % 2] = arch::dot2(w[i], pair, sums.acc[t][i % 2]);
          arch::settle(sums.acc[t][i % 2]);
        }
      }
    }
    cursor.tiles += Plan::kWaves * kTileBytes;
    cursor.index += Plan::kWaves;
  }
}

template <GemmConfig config, typename Plane>
NF12_DEVICE void publish_sums(const Sums<config>& sums, const Plane& plane) {
  using Plan = FusedPlan<config>;
  NF12_UNROLL
  for (int t = 0; t < Plan::kTokens; ++t)
    plane.store((arch::wave() * Plan::kTokens + t) * Plan::kBlockRows + arch::lane(),
                sums.acc[t][0] + sums.acc[t][1]);
}

// One output a thread: the waves' sums in ascending order, then y, or the partial of this split.
template <GemmConfig config, typename Plane>
NF12_DEVICE void store_outputs(const GemmParams& p, const Plane& plane) {
  using Plan = FusedPlan<config>;
  const int first = arch::wave();
  const int row = arch::block_x() * Plan::kBlockRows + arch::lane();
  if (row >= static_cast<int>(p.weight.n)) return;
  NF12_NO_UNROLL
  for (int t = first; t < Plan::kTokens; t += Plan::kWaves) {
    float sum = 0;
    NF12_UNROLL
    for (int wave = 0; wave < Plan::kWaves; ++wave)
      sum += plane.load((wave * Plan::kTokens + t) * Plan::kBlockRows + arch::lane());
    if (p.partials) {
      const int64_t slice = int64_t{arch::block_y()} * Plan::kTokens + t;
      arch::store4(p.partials + slice * p.weight.n + row, sum);
    } else {
      const float bias = p.bias ? float_from_bf16(arch::load2(p.bias, 2 * row)) : kNoBias;
      arch::store2(p.y + t * p.y_stride + row, finish(sum, p.scale, bias));
    }
  }
}

template <GemmConfig config>
NF12_DEVICE void fused_gemm(const GemmParams& p) {
  using Plan = FusedPlan<config>;
  NF12_SHARED(float, plane, Plan::kPlaneFloats);
  Sums<config> sums = {};
  multiply_columns(p, sums);
  multiply_checked(arch::reread_arguments(p), sums);
  publish_sums(sums, plane);
  arch::sync_block();
  store_outputs<config>(arch::reread_arguments(p), plane);
}

}  // namespace nf12
