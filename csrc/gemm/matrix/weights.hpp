// Weights of a wave: from memory into a lane's registers, and from there to BF16 pairs.
#pragma once
#include "csrc/format/decode_registers.hpp"
#include "csrc/gemm/matrix/patch.hpp"
#include "csrc/gemm/matrix/plan.hpp"

namespace nf12 {

// A lane's part of one tile, undecoded.
struct LaneTile {
  uint32_t signs[8];  // sign-mantissa, run by run
  uint32_t codes[4];
};

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
    const int below = Fragments::row(0, run) - Fragments::row(0, 0);
    const uint8_t* signs = tile + sign_mantissa_byte(below, 0);
    const uint8_t* codes = tile + code_word_byte(below, 0);
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
    uint32_t pairs[4];
    decode_eight(tile.signs + 2 * i, tile.codes[i], mask, pairs);
    NF12_UNROLL
    for (int j = 0; j < 4; ++j) w[arch::slot_of_pair<arch::Fragments>(4 * i + j)] = pairs[j];
  }
}

// Decoded and patched: A fragments.
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

}  // namespace nf12
