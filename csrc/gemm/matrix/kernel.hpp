// Matrix-core GEMM for m >= 16 (right for every m >= 1): y[t, j] = sum_k x[t, k] W[j, k].
//
// Bound by the bytes of the weights up to about 128 tokens, by the matrix cores above.
//   - A wave owns one or two tile rows of W and walks along their tile columns. The 48 bytes of a
//     tile that a lane loads are, decoded, its A fragments: no shuffle, no shared memory. Each
//     decode serves all tokens of the block.
//   - The waves of a block own different tile rows and share x: 64 columns of all its tokens are
//     staged in shared memory while the 64 before them are multiplied. One read of 16 bytes a lane
//     is the B fragment of 16 tokens (lane maps: arch/fragments.hpp).
//   - Two tile columns of weights are in flight: one waits in registers, one more is loaded.
//   - blockIdx.y splits the tile columns where n alone does not fill the card; such a launch writes
//     FP32 partials, and combine.hpp adds them in the order of the splits.
//
//   round c of a wave                                     shared memory   stage c % 2   the other
//     decode and patch the weights of column c
//     wait: all have stored x of c and are done with c-1                  x of c        free
//     store x of c+1; load x and weights of c+2                           x of c        x of c+1
//     multiply; signal as soon as nothing more is read                    free
//
// Order of a sum (the reference in the tests follows it): tile columns ascending, within one the
// four steps, within a step the hardware's own order; then the splits ascending.
// Tokens past m and rows past n are clamped to the last one, and their sums dropped. Columns past k
// are zeros of x, because the weights' padding is not zero.
#pragma once
#include "csrc/format/decode_registers.hpp"
#include "csrc/gemm/epilogue.hpp"
#include "csrc/gemm/matrix/config.hpp"
#include "csrc/gemm/matrix/patch.hpp"
#include "csrc/gemm/params.hpp"

namespace nf12 {

inline constexpr int kTokenTile = 16;
inline constexpr int kPieceColumns = 8;  // 16 bytes of x
inline constexpr int kRowPieces = kTileColumns / kPieceColumns;
// 16 bytes more than 64 columns need: the 16 lanes that read one column of pieces then start in
// different banks.
inline constexpr int kPitchWords = kTileColumns / 2 + 4;

template <MatrixConfig config>
struct MatrixPlan {
  static constexpr int kTokens = config.tokens;
  static constexpr int kWaves = config.waves;
  static constexpr int kRows = config.tile_rows;
  static constexpr int kThreads = kWaves * arch::kWave;
  static constexpr int kTokenTiles = kTokens / kTokenTile;

  // B fragments of a column: step by step, token tiles fastest. They are read a group ahead.
  static constexpr int kFragments = arch::kFragmentSteps * kTokenTiles;
  static constexpr int kGroup = kFragments < 8 ? kFragments / 2 : 4;
  static constexpr int kGroups = kFragments / kGroup;

  static constexpr int kPieces = kTokens * kRowPieces / kThreads;  // of x, a lane
  static constexpr int kPieceTokens = kThreads / kRowPieces;       // tokens from one to the next
  static constexpr int kStageWords = kTokens * kPitchWords;

  static_assert(kTokens % kTokenTile == 0 && kTokenTiles >= 1);
  static_assert(kRows == 1 || kRows == 2);
  static_assert(kPieces * kThreads == kTokens * kRowPieces, "every lane stages as much of x");
};

// A lane's part of one tile, undecoded.
struct LaneTile {
  uint32_t signs[8];  // sign-mantissa, run by run
  uint32_t codes[4];
};

// Tile columns [begin, end) of this block's split. The loop takes pairs of whole ones, up to
// `paired`.
struct ColumnRange {
  int begin, paired, end;
};

NF12_DEVICE ColumnRange column_range(const GemmParams& p) {
  const int total = tile_columns_of(p.weight);
  const int begin = arch::block_y() * p.columns_per_split;
  const int stop = begin + p.columns_per_split;
  const int end = arch::in_register(stop < total ? stop : total);
  const int whole = static_cast<int>(static_cast<uint32_t>(p.weight.k) / kTileColumns);
  const int pairs = ((whole < end ? whole : end) - begin) / 2;
  return {begin, arch::in_register(begin + 2 * pairs), end};
}

// Which rows of W and which tokens a wave works on. Token blocks vary fastest: those that read the
// same weights run together.
template <MatrixConfig config>
struct Place {
  int tile_row[MatrixPlan<config>::kRows];  // may lie past the last one
  int token;                                // the block's first
};

template <MatrixConfig config>
NF12_DEVICE Place<config> place_of(const GemmParams& p) {
  using Plan = MatrixPlan<config>;
  const uint32_t token_blocks = (static_cast<uint32_t>(p.m) + Plan::kTokens - 1) / Plan::kTokens;
  const uint32_t block = arch::block_x();
  const uint32_t row_block = block / token_blocks;
  Place<config> place;
  NF12_UNROLL
  for (int r = 0; r < Plan::kRows; ++r)
    place.tile_row[r] = (row_block * Plan::kWaves + arch::wave()) * Plan::kRows + r;
  place.token = (block - row_block * token_blocks) * Plan::kTokens;
  return place;
}

// The pointers are uniform and start at tile column 0; the offsets tell the lanes apart.
template <MatrixConfig config>
struct WeightRows {
  const uint8_t* tiles[MatrixPlan<config>::kRows];
  const uint32_t* index[MatrixPlan<config>::kRows];
  uint32_t signs_offset;
  uint32_t codes_offset;  // from kCodesOffset
};

template <MatrixConfig config>
NF12_DEVICE WeightRows<config> open_weights(const GemmParams& p, const Place<config>& place) {
  const int last = tile_rows_of(p.weight) - 1;
  const int row = arch::Fragments::row(arch::lane(), 0);
  const int column = arch::Fragments::column(arch::lane());
  WeightRows<config> rows;
  NF12_UNROLL
  for (int r = 0; r < MatrixPlan<config>::kRows; ++r) {
    const int64_t tile_row = arch::in_register(place.tile_row[r] < last ? place.tile_row[r] : last);
    rows.tiles[r] = arch::in_register(p.weight.payload + tile_row * p.weight.payload_stride_bytes);
    rows.index[r] = arch::in_register(p.weight.index + tile_row * p.weight.index_stride);
  }
  rows.signs_offset = sign_mantissa_byte(row, column);
  rows.codes_offset = code_word_byte(row, column) - kCodesOffset;
  return rows;
}

NF12_DEVICE LaneTile load_tile(const uint8_t* tile, uint32_t signs_offset, uint32_t codes_offset) {
  using arch::Fragments;
  LaneTile out;
  NF12_UNROLL
  for (int run = 0; run < Fragments::kRuns; ++run) {
    const uint8_t* signs =
        tile + run * kTileColumns * Fragments::row(0, Fragments::kRuns > 1 ? 1 : 0);
    const uint8_t* codes =
        tile + kCodesOffset + run * kTileColumns / 2 * Fragments::row(0, Fragments::kRuns > 1);
    NF12_UNROLL
    for (int i = 0; i < Fragments::kRunColumns / 16; ++i) {
      const arch::Words<4> words = arch::load_stream16(signs + 16 * i, signs_offset);
      NF12_UNROLL
      for (int j = 0; j < 4; ++j)
        out.signs[run * Fragments::kRunColumns / 4 + 4 * i + j] = words.w[j];
    }
    if constexpr (Fragments::kRunColumns == 32) {
      const arch::Words<4> words = arch::load_stream16(codes, codes_offset);
      NF12_UNROLL
      for (int j = 0; j < 4; ++j) out.codes[j] = words.w[j];
    } else {
      const arch::Words<2> words = arch::load_stream8(codes, codes_offset);
      NF12_UNROLL
      for (int j = 0; j < 2; ++j) out.codes[2 * run + j] = words.w[j];
    }
  }
  return out;
}

// Past the last one (`wanted` is uniform) every lane reads the same 16 bytes of a tile instead: a
// branch around the loads would leave their number unknown, and later waits would be for all.
template <MatrixConfig config>
NF12_DEVICE void load_column(const WeightRows<config>& rows, const ColumnRange& columns, int column,
                             LaneTile (&tiles)[MatrixPlan<config>::kRows]) {
  const bool wanted = column < columns.paired;
  const int there = arch::in_register(wanted ? column : columns.begin);
  const uint32_t signs_offset = wanted ? rows.signs_offset : 0;
  const uint32_t codes_offset = wanted ? rows.codes_offset : 0;
  NF12_UNROLL
  for (int r = 0; r < MatrixPlan<config>::kRows; ++r)
    tiles[r] = load_tile(rows.tiles[r] + int64_t{there} * kTileBytes, signs_offset, codes_offset);
}

template <MatrixConfig config>
NF12_DEVICE void load_index(const WeightRows<config>& rows, int column,
                            uint32_t (&index)[MatrixPlan<config>::kRows]) {
  NF12_UNROLL
  for (int r = 0; r < MatrixPlan<config>::kRows; ++r)
    index[r] = arch::uniform_load<1>(rows.index[r], 4 * column).w[0];
}

NF12_DEVICE void decode_tile(const LaneTile& tile, const DecodeConstants& mask,
                             uint32_t (&w)[kLanePairs]) {
  NF12_UNROLL
  for (int i = 0; i < 4; ++i) {
    decode_quad<0>(tile.signs[2 * i], tile.codes[i], mask, &w[4 * i]);
    decode_quad<1>(tile.signs[2 * i + 1], tile.codes[i], mask, &w[4 * i + 2]);
  }
}

// What a lane brings from x to shared memory: pieces of 8 columns, the same ones of several tokens.
template <MatrixConfig config>
struct TokenPieces {
  arch::Words<4> piece[MatrixPlan<config>::kPieces];
};

template <MatrixConfig config>
struct TokenRows {
  const uint16_t* x;  // the block's first token; uniform
  uint32_t offset[MatrixPlan<config>::kPieces];
  int column;        // the lane's first, within 64
  int shared_words;  // its first piece within a stage
};

template <MatrixConfig config>
NF12_DEVICE TokenRows<config> open_tokens(const GemmParams& p, const Place<config>& place) {
  using Plan = MatrixPlan<config>;
  const int thread = arch::wave() * arch::kWave + arch::lane();
  const int token = thread / kRowPieces;
  const int last = p.m - 1 - place.token;
  TokenRows<config> rows;
  rows.x = arch::in_register(p.x + int64_t{place.token} * p.x_stride);
  rows.column = thread % kRowPieces * kPieceColumns;
  rows.shared_words = token * kPitchWords + rows.column / 2;
  NF12_UNROLL
  for (int i = 0; i < Plan::kPieces; ++i) {
    const int wanted = token + i * Plan::kPieceTokens;
    const uint32_t there = wanted < last ? wanted : last;
    rows.offset[i] = 2 * (there * static_cast<uint32_t>(p.x_stride) + rows.column);
  }
  return rows;
}

template <MatrixConfig config>
NF12_DEVICE void load_tokens(TokenRows<config>& rows, const ColumnRange& columns, int column,
                             TokenPieces<config>& x) {
  const int there = arch::in_register(column < columns.paired ? column : columns.begin);
  const uint16_t* base = rows.x + int64_t{there} * kTileColumns;
  NF12_UNROLL
  for (int i = 0; i < MatrixPlan<config>::kPieces; ++i) {
    arch::settle(rows.offset[i]);  // else widened to 64 bits once, in registers of its own
    x.piece[i] = arch::load16_anywhere(base, rows.offset[i]);
  }
}

// Zero past k. What is read in place of a column that does not exist is the first of the 64.
template <MatrixConfig config>
NF12_DEVICE void load_tokens_checked(const TokenRows<config>& rows, int64_t k, int column,
                                     TokenPieces<config>& x) {
  const uint16_t* base = arch::in_register(rows.x + int64_t{column} * kTileColumns);
  const int left = static_cast<int>(k - int64_t{column} * kTileColumns) - rows.column;
  NF12_UNROLL
  for (int i = 0; i < MatrixPlan<config>::kPieces; ++i) {
    const uint32_t first = rows.offset[i] - 2 * rows.column;
    NF12_UNROLL
    for (int j = 0; j < 4; ++j) {
      const uint32_t even = arch::load2(base, 2 * j < left ? rows.offset[i] + 4 * j : first);
      const uint32_t odd = arch::load2(base, 2 * j + 1 < left ? rows.offset[i] + 4 * j + 2 : first);
      x.piece[i].w[j] = (2 * j < left ? even : 0) | (2 * j + 1 < left ? odd << 16 : 0);
      arch::settle(x.piece[i].w[j]);  // one at a time: together they would need twice the registers
    }
  }
}

template <MatrixConfig config, typename Stage>
NF12_DEVICE void store_tokens(const TokenRows<config>& rows, const TokenPieces<config>& x,
                              const Stage& stage, int buffer) {
  using Plan = MatrixPlan<config>;
  NF12_UNROLL
  for (int i = 0; i < Plan::kPieces; ++i)
    arch::store_shared16(
        stage,
        buffer * Plan::kStageWords + rows.shared_words + i * Plan::kPieceTokens * kPitchWords,
        x.piece[i]);
}

template <typename Stage>
NF12_DEVICE arch::Words<4> load_fragment(const Stage& stage, int word) {
  using arch::Fragments;
  constexpr int kRunWords = 4 / Fragments::kRuns;
  arch::Words<4> out;
  NF12_UNROLL
  for (int run = 0; run < Fragments::kRuns; ++run) {
    const int below = (Fragments::row(0, run) - Fragments::row(0, 0)) * kPitchWords;
    const arch::Words<kRunWords> words = arch::load_shared<kRunWords>(stage, word + below);
    NF12_UNROLL
    for (int i = 0; i < kRunWords; ++i) out.w[run * kRunWords + i] = words.w[i];
  }
  return out;
}

template <MatrixConfig config>
struct BlockSums {
  arch::MatrixSums tile[MatrixPlan<config>::kRows][MatrixPlan<config>::kTokenTiles];
};

// `lane_word` is the lane's first word of a stage. The block is told that a stage is read as soon
// as its last fragments have arrived, two groups before they are all multiplied.
template <MatrixConfig config, typename Stage>
NF12_DEVICE void multiply_stage(const uint32_t (&w)[MatrixPlan<config>::kRows][kLanePairs],
                                const Stage& stage, int lane_word, BlockSums<config>& sums) {
  using Plan = MatrixPlan<config>;
  arch::Words<4> x[2][Plan::kGroup];
  const auto load_group = [&](int group) {
    NF12_UNROLL
    for (int i = 0; i < Plan::kGroup; ++i) {
      const int fragment = group * Plan::kGroup + i;
      const int step = fragment / Plan::kTokenTiles, tile = fragment % Plan::kTokenTiles;
      x[group % 2][i] = load_fragment(stage, lane_word + tile * kTokenTile * kPitchWords +
                                                 step * arch::Fragments::kStepColumns / 2);
    }
  };
  load_group(0);
  NF12_UNROLL
  for (int group = 0; group < Plan::kGroups; ++group) {
    if (group + 1 < Plan::kGroups) load_group(group + 1);
    if (group + 2 == Plan::kGroups) arch::signal_block();
    arch::hold_order();
    NF12_UNROLL
    for (int i = 0; i < Plan::kGroup; ++i) {
      const int fragment = group * Plan::kGroup + i;
      const int step = fragment / Plan::kTokenTiles, tile = fragment % Plan::kTokenTiles;
      NF12_UNROLL
      for (int r = 0; r < Plan::kRows; ++r)
        arch::multiply_fragment(w[r], step, x[group % 2][i], sums.tile[r][tile]);
    }
    arch::hold_order();
  }
  // Else they are carried into the next column's blocks, and x with them.
  NF12_UNROLL
  for (int r = 0; r < Plan::kRows; ++r) {
    NF12_UNROLL
    for (int tile = 0; tile < Plan::kTokenTiles; ++tile) arch::settle(sums.tile[r][tile]);
  }
}

// Everything a wave holds of the tile columns to come.
template <MatrixConfig config>
struct MatrixPipeline {
  LaneTile tiles[2][MatrixPlan<config>::kRows];  // of even and of odd columns of the split
  uint32_t index[MatrixPlan<config>::kRows];
  TokenPieces<config> x;
};

template <MatrixConfig config>
NF12_DEVICE void decode_column(const GemmParams& p,
                               const LaneTile (&tiles)[MatrixPlan<config>::kRows],
                               const DecodeConstants& mask,
                               const uint32_t (&index)[MatrixPlan<config>::kRows],
                               uint32_t (&w)[MatrixPlan<config>::kRows][kLanePairs]) {
  using Plan = MatrixPlan<config>;
  arch::hold_order();
  NF12_UNROLL
  for (int r = 0; r < Plan::kRows; ++r) decode_tile(tiles[r], mask, w[r]);
  arch::hold_order();
  NF12_UNROLL
  for (int r = 0; r < Plan::kRows; ++r)
    if (index[r] != 0) patch_tile(arch::reread_arguments(p).weight, index[r], w[r]);
  arch::hold_order();
}

template <MatrixConfig config, typename Stage>
NF12_DEVICE void multiply_column(const GemmParams& p, const DecodeConstants& mask,
                                 const WeightRows<config>& weights, TokenRows<config>& tokens,
                                 const ColumnRange& columns, int column, int parity,
                                 const Stage& stage, int lane_word, MatrixPipeline<config>& next,
                                 BlockSums<config>& sums) {
  using Plan = MatrixPlan<config>;
  uint32_t w[Plan::kRows][kLanePairs];
  decode_column<config>(p, next.tiles[parity], mask, next.index, w);
  arch::wait_block();
  store_tokens(tokens, next.x, stage, 1 - parity);
  arch::hold_order();
  // x first: a wait for it is then not one for the weights that were asked for with it.
  load_tokens(tokens, columns, column + 2, next.x);
  arch::hold_order();
  load_column(weights, columns, column + 2, next.tiles[parity]);
  load_index(weights, column + 1 < columns.paired ? column + 1 : columns.begin, next.index);
  arch::hold_order();
  multiply_stage(w, stage, parity * Plan::kStageWords + lane_word, sums);
}

template <MatrixConfig config, typename Stage>
NF12_DEVICE void multiply_pairs(const GemmParams& p, const WeightRows<config>& weights,
                                TokenRows<config>& tokens, const ColumnRange& columns,
                                const Stage& stage, int lane_word, BlockSums<config>& sums) {
  const DecodeConstants mask;
  MatrixPipeline<config> next;
  load_tokens(tokens, columns, columns.begin, next.x);
  arch::hold_order();  // oldest first, as the loop waits for them
  load_column(weights, columns, columns.begin, next.tiles[0]);
  arch::hold_order();
  store_tokens(tokens, next.x, stage, 0);
  load_tokens(tokens, columns, columns.begin + 1, next.x);
  arch::hold_order();
  load_column(weights, columns, columns.begin + 1, next.tiles[1]);
  load_index(weights, columns.begin, next.index);
  arch::signal_block();
  int column = columns.begin;
  NF12_NO_UNROLL
  do {
    multiply_column(p, mask, weights, tokens, columns, column, 0, stage, lane_word, next, sums);
    multiply_column(p, mask, weights, tokens, columns, column + 1, 1, stage, lane_word, next, sums);
    column += 2;
  } while (column < columns.paired);
  arch::wait_block();
}

// What has no pair, and the last column when k is not a multiple of 64: one after the other.
template <MatrixConfig config, typename Stage>
NF12_DEVICE void multiply_rest(const GemmParams& p, const WeightRows<config>& weights,
                               const TokenRows<config>& tokens, const ColumnRange& columns,
                               const Stage& stage, int lane_word, BlockSums<config>& sums) {
  using Plan = MatrixPlan<config>;
  const DecodeConstants mask;
  NF12_NO_UNROLL
  for (int column = columns.paired; column < columns.end; ++column) {
    TokenPieces<config> x;
    load_tokens_checked(tokens, arch::reread_arguments(p).weight.k, column, x);
    store_tokens(tokens, x, stage, 0);
    arch::signal_block();
    LaneTile tiles[Plan::kRows];
    NF12_UNROLL
    for (int r = 0; r < Plan::kRows; ++r)
      tiles[r] = load_tile(weights.tiles[r] + int64_t{column} * kTileBytes, weights.signs_offset,
                           weights.codes_offset);
    uint32_t index[Plan::kRows];
    load_index(weights, column, index);
    uint32_t w[Plan::kRows][kLanePairs];
    decode_column<config>(p, tiles, mask, index, w);
    arch::wait_block();
    multiply_stage(w, stage, lane_word, sums);
    arch::wait_block();
  }
}

// Sums of neighbouring rows of one token; `rows_left` of them exist. A whole run leaves as 16
// bytes.
template <int count>
NF12_DEVICE void store_partials(float* out, const float (&sums)[count], int rows_left) {
  if constexpr (count % 4 == 0) {
    if (rows_left >= count) {
      NF12_UNROLL
      for (int i = 0; i < count; i += 4) {
        arch::Words<4> words;
        NF12_UNROLL
        for (int j = 0; j < 4; ++j) words.w[j] = __builtin_bit_cast(uint32_t, sums[i + j]);
        arch::store16_anywhere(out + i, words);
      }
      return;
    }
  }
  NF12_UNROLL
  for (int i = 0; i < count; ++i)
    if (i < rows_left) arch::store4(out + i, sums[i]);
}

template <int count>
NF12_DEVICE void store_finished(uint16_t* out, const float (&sums)[count], float scale,
                                const float (&bias)[count], int rows_left) {
  uint32_t y[count];
  NF12_UNROLL
  for (int i = 0; i < count; ++i) y[i] = finish(sums[i], scale, bias[i]);
  if constexpr (count == 8) {
    if (rows_left >= count) {
      arch::Words<4> words;
      NF12_UNROLL
      for (int i = 0; i < 4; ++i) words.w[i] = y[2 * i] | y[2 * i + 1] << 16;
      arch::store16_anywhere(out, words);
      return;
    }
  }
  NF12_UNROLL
  for (int i = 0; i < count; ++i)
    if (i < rows_left) arch::store2(out + i, static_cast<uint16_t>(y[i]));
}

template <MatrixConfig config>
NF12_DEVICE void store_outputs(const GemmParams& p, const Place<config>& place,
                               const BlockSums<config>& sums) {
  using Plan = MatrixPlan<config>;
  using arch::Fragments;
  constexpr int kRun = Fragments::kSumRun;
  const int lane = arch::lane();
  NF12_UNROLL
  for (int r = 0; r < Plan::kRows; ++r) {
    NF12_UNROLL
    for (int first = 0; first < arch::kFragmentSums; first += kRun) {
      const int row = place.tile_row[r] * kTileRows + Fragments::sum_row(lane, first);
      const int rows_left = static_cast<int>(p.weight.n) - row;
      float bias[kRun];
      NF12_UNROLL
      for (int i = 0; i < kRun; ++i)
        bias[i] =
            p.bias && i < rows_left ? float_from_bf16(arch::load2(p.bias, 2 * (row + i))) : kNoBias;
      NF12_UNROLL
      for (int tile = 0; tile < Plan::kTokenTiles; ++tile) {
        const int token = place.token + tile * kTokenTile + Fragments::sum_token(lane, first);
        if (token >= p.m || rows_left <= 0) continue;
        float run[kRun];
        NF12_UNROLL
        for (int i = 0; i < kRun; ++i) run[i] = sums.tile[r][tile].get(first + i);
        if (p.partials)
          store_partials(p.partials + (int64_t{arch::block_y()} * p.m + token) * p.weight.n + row,
                         run, rows_left);
        else
          store_finished(p.y + token * p.y_stride + row, run, p.scale, bias, rows_left);
      }
    }
  }
}

template <MatrixConfig config>
NF12_DEVICE void matrix_gemm(const GemmParams& p) {
  using Plan = MatrixPlan<config>;
  NF12_SHARED(uint32_t, stage, 2 * Plan::kStageWords);
  BlockSums<config> sums;
  const Place<config> place = place_of<config>(p);
  const ColumnRange columns = column_range(p);
  const WeightRows<config> weights = open_weights(p, place);
  TokenRows<config> tokens = open_tokens(p, place);
  const int lane_word = arch::Fragments::row(arch::lane(), 0) * kPitchWords +
                        arch::Fragments::column(arch::lane()) / 2;
  if (columns.begin < columns.paired)
    multiply_pairs(p, weights, tokens, columns, stage, lane_word, sums);
  multiply_rest(p, weights, tokens, columns, stage, lane_word, sums);
  store_outputs(arch::reread_arguments(p), place, sums);
}

}  // namespace nf12
