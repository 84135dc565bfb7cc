// Tiles of a wave that come one after the other through shared memory, and the escapes of each:
// index words 32 tiles ahead, a list's entries one tile ahead.
#pragma once
#include <type_traits>

#include "csrc/gemm/matrix/weights.hpp"
#include "csrc/gemm/stream/patch.hpp"

namespace nf12 {

// Index words of a batch of tiles, one a lane, and the entries of the next tile's list. A batch is
// 32 tiles, or fewer: then a bit behind the last one's says so (warpgroup/lists.hpp).
struct TileIndex {
  const uint32_t* words;  // of the wave's first tile
  int step;               // words from one of its tiles to the next
  uint32_t own;           // 0 if it names nothing, or what lies outside the table
  uint32_t listed;        // bit i: tile i of those to come has escapes
  uint32_t entry;         // entry lane() of the list of the first of them
};

// `tile`: of the batch.
NF12_DEVICE void fetch_entries(const PackedView& weight, TileIndex& index, int tile) {
  const IndexWord word = IndexWord::from_bits(arch::broadcast(index.own, tile));
  if (word.is_raw()) return;
  const int lane = arch::lane();
  if (lane < static_cast<int>(word.count))
    index.entry =
        arch::load_words<1>(weight.escapes + int64_t{word.quad} * kEntriesPerQuad + lane).w[0];
}

template <int batch = arch::kWave>
NF12_DEVICE void load_index(TileIndex& index, int tile, int count) {
  const int lane = arch::lane();
  index.own = (batch == arch::kWave || lane < batch) && tile + lane < count
                  ? arch::load_words<1>(index.words + (tile + lane) * index.step).w[0]
                  : 0;
}

// Words are checked here, each by its lane, so that no tile waits for it.
template <int batch = arch::kWave>
NF12_DEVICE void open_index(const PackedView& weight, TileIndex& index, int tile) {
  const IndexWord word = IndexWord::from_bits(index.own);
  if (word.is_inside(weight.quads))
    arch::prefetch(weight.escapes + int64_t{word.quad} * kEntriesPerQuad);
  else
    index.own = 0;
  index.listed = arch::ballot(index.own != 0);
  if constexpr (batch < arch::kWave) index.listed |= 1u << batch;
  if (index.listed & 1) fetch_entries(weight, index, tile % arch::kWave);
}

// A lane copies 48 bytes of its wave's tile, adjacent to its neighbours'.
NF12_DEVICE void copy_tile(bool wanted, const arch::Shared<uint32_t>& shared, int stage_word,
                           const uint8_t* tile) {
  const int lane = arch::lane();
  NF12_UNROLL
  for (int i = 0; i < 3; ++i)
    arch::copy_shared16_if(wanted, shared, stage_word + 128 * i + 4 * lane,
                           tile + 512 * i + 16 * lane);
}

NF12_DEVICE LaneTile read_tile(const arch::Shared<uint32_t>& shared, int stage_word) {
  constexpr int kCodes = kCodesOffset / 4;
  const int lane = arch::lane();
  LaneTile out;
  NF12_UNROLL
  for (int run = 0; run < 2; ++run) {
    const arch::Words<4> signs = arch::load_shared<4>(shared, stage_word + 128 * run + 4 * lane);
    const arch::Words<2> codes =
        arch::load_shared<2>(shared, stage_word + kCodes + 64 * run + 2 * lane);
    NF12_UNROLL
    for (int i = 0; i < 4; ++i) out.signs[4 * run + i] = signs.w[i];
    out.codes[2 * run] = codes.w[0];
    out.codes[2 * run + 1] = codes.w[1];
  }
  return out;
}

// patch_raw of fragments that are single pairs.
template <typename Fragments>
NF12_DEVICE void take_raw(const uint32_t* values, uint32_t (&w)[kLanePairs]) {
  const int lane = arch::lane();
  NF12_UNROLL
  for (int i = 0; i < kLanePairs; ++i)
    w[i] = arch::load_words<1>(
               values + (Fragments::row(lane, i) * kTileColumns + Fragments::column(lane, i)) / 2)
               .w[0];
}

// Escapes of a tile of the batch, decoded in `w`.
template <typename Fragments>
NF12_DEVICE void patch_tile(const PackedView& weight, const arch::Shared<uint32_t>& shared,
                            const DecodedPlace& place, const TileIndex& index, int tile,
                            uint32_t (&w)[kLanePairs]) {
  const IndexWord word = IndexWord::from_bits(arch::broadcast(index.own, tile));
  const uint32_t* entries = weight.escapes + int64_t{word.quad} * kEntriesPerQuad;
  if (!word.is_raw())
    patch_list<Fragments>(shared, place, entries, static_cast<int>(word.count), index.entry, w);
  else if constexpr (std::is_same_v<Fragments, arch::Fragments>)
    patch_raw(entries, w);
  else
    take_raw<Fragments>(entries, w);
}

// Escapes of tile t, decoded in `w`; makes ready for the next of `count` tiles.
NF12_DEVICE void patch_next(const PackedView& weight, const arch::Shared<uint32_t>& shared,
                            const DecodedPlace& place, int t, int count, TileIndex& index,
                            uint32_t (&w)[kLanePairs]) {
  if (index.listed & 1)
    patch_tile<arch::Fragments>(weight, shared, place, index, t % arch::kWave, w);
  index.listed >>= 1;
  if (index.listed & 1) fetch_entries(weight, index, (t + 1) % arch::kWave);
  if (t % arch::kWave == arch::kWave - 1) {
    load_index(index, t + 1, count);
    open_index(weight, index, t + 1);
  }
}

}  // namespace nf12
