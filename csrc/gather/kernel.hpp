// Gather: row ids[i] of W to row i of the output, as exact BF16; how an embedding reads.
//
// Bound by latency and by the few bytes of each row: 96 of a tile's 1,536.
//   - A block takes an id, its waves share out the row: a wave reads 256 columns, which are four
//     tiles, and a lane eight of them: 8 bytes of signs, 4 of codes, 16 bytes out.
//   - Eight lanes share a tile. Each goes through the tile's list itself and keeps what falls on
//     its eight columns; they read the same words, so that costs one access.
//
// An id outside [0, n) gives a row of NaN 0x7FFF and reads nothing. A word that names quads outside
// the table leaves its tile unpatched.
#pragma once
#include "csrc/format/decode_registers.hpp"
#include "csrc/format/pieces.hpp"

namespace nf12 {

struct GatherParams {
  PackedView weight;       // [n, k]
  const void* ids;         // [count], int32 or int64
  uint16_t* out;           // [count, k]
  int64_t out_row_stride;  // elements
  int64_t count;
  int32_t id_bytes;  // 4 or 8
  int32_t blocks_x;  // of the grid: block_x takes ids block_x, block_x + blocks_x, ...
  int32_t blocks_y;  // likewise columns, kGatherBlockColumns at a time
};

inline constexpr int kGatherWaves = 4;
inline constexpr int kGatherWaveColumns = arch::kWave * kPieceColumns;
inline constexpr int kGatherBlockColumns = kGatherWaves * kGatherWaveColumns;
inline constexpr uint32_t kMissingPair = 0x7FFF7FFFu;  // NaN

NF12_DEVICE int64_t load_id(const GatherParams& p, int64_t i) {
  const auto at = reinterpret_cast<uintptr_t>(p.ids) + i * p.id_bytes;
  const uint32_t low = arch::uniform_load<1>(reinterpret_cast<const void*>(at), 0).w[0];
  if (p.id_bytes == 4) return static_cast<int32_t>(low);
  const uint32_t high = arch::uniform_load<1>(reinterpret_cast<const void*>(at), 4).w[0];
  return static_cast<int64_t>(uint64_t{high} << 32 | low);
}

// Those entries of a list that fall on the eight weights from `position` on.
NF12_DEVICE void patch_piece(const uint32_t* entries, int count, uint32_t position, int shift,
                             uint32_t (&piece)[kPieceWords]) {
  NF12_NO_UNROLL
  for (int i = 0; i < count; ++i) {
    const Escape escape = Escape::from_bits(arch::load_words<1>(entries + i).w[0]);
    const uint32_t column = escape.position - position;
    if (column >= kPieceColumns) continue;
    const uint32_t mask = column % 2 ? 0xFFFF0000u : 0x0000FFFFu;
    const uint32_t value = scale_by(escape.value, shift) * 0x10001u;
    NF12_UNROLL
    for (uint32_t j = 0; j < kPieceWords; ++j)  // as selects: an indexed register is memory
      piece[j] = arch::merge_bits(j == column / 2 ? mask : 0, value, piece[j]);
  }
}

// Eight columns from `column` on of row `row`; the lane's own.
NF12_DEVICE void read_piece(const PackedView& weight, int row, int column,
                            const DecodeConstants& mask, uint32_t (&piece)[kPieceWords]) {
  const int r = row / kTileRows, c = column / kTileColumns;
  const uint32_t position =
      static_cast<uint32_t>(row % kTileRows * kTileColumns + column % kTileColumns);
  const uint8_t* tile = weight.tile(r, c);
  const uint32_t* index = weight.index + r * weight.index_stride + c;
  const arch::Words<2> signs = arch::load_words<2>(tile + position);
  const arch::Words<1> codes = arch::load_words<1>(tile + kCodesOffset + position / 2);
  const IndexWord word = IndexWord::from_bits(arch::load_words<1>(index).w[0]);
  const int shift = -scale_shift(weight.base);
  decode_eight(signs.w, codes.w[0], mask, piece);
  NF12_UNROLL
  for (uint32_t& pair : piece) pair += static_cast<uint32_t>(shift) * 0x00800080u;
  if (!word.is_inside(weight.quads)) return;
  const uint32_t* entries = weight.escapes + int64_t{word.quad} * kEntriesPerQuad;
  if (!word.is_raw()) {
    patch_piece(entries, static_cast<int>(word.count), position, shift, piece);
    return;
  }
  const arch::Words<4> raw = arch::load_words<4>(entries + position / 2);
  NF12_UNROLL
  for (int i = 0; i < kPieceWords; ++i) piece[i] = scale_pair(raw.w[i], shift);
}

template <int alignment>
NF12_DEVICE void gather(const GatherParams& p) {
  const DecodeConstants mask;
  const auto k = static_cast<int>(p.weight.k);
  const int first = arch::block_y() * kGatherBlockColumns + arch::wave() * kGatherWaveColumns +
                    arch::lane() * kPieceColumns;
  NF12_NO_UNROLL
  for (int64_t i = arch::block_x(); i < p.count; i += p.blocks_x) {
    const int64_t id = load_id(p, i);
    const bool present = id >= 0 && id < p.weight.n;
    uint16_t* out = p.out + i * p.out_row_stride;
    NF12_NO_UNROLL
    for (int64_t column = first; column < k; column += int64_t{p.blocks_y} * kGatherBlockColumns) {
      uint32_t piece[kPieceWords] = {kMissingPair, kMissingPair, kMissingPair, kMissingPair};
      if (present)
        read_piece(p.weight, static_cast<int>(id), static_cast<int>(column), mask, piece);
      store_piece<alignment>(out + column, k - static_cast<int>(column), piece);
    }
  }
}

}  // namespace nf12
