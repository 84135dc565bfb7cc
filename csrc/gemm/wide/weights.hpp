// A wave's 16 rows of every k-block: from the encoded ring through registers to the buffer that its
// group multiplies from (64 rows, the A operand), escapes on top.
#pragma once
#include "csrc/format/decode_registers.hpp"
#include "csrc/gemm/encoded_tile.hpp"
#include "csrc/gemm/wide/copies.hpp"

namespace nf12 {

// K-blocks are numbered as the block takes them: number t lies in stage t of the ring, and decoded
// in buffer t, modulo how many there are.
template <WideConfig config>
struct WideDecoder {
  uint32_t barriers;      // of the encoded ring: filled; read follow
  uint32_t signs, codes;  // of the lane, in the first stage of that ring
  uint32_t index_word, list_entry;
  uint32_t rows;   // the wave's rows in the first buffer of its group
  uint32_t piece;  // the lane's first piece there
  LaneTile tile;   // the next one, encoded
  uint32_t word;   // its index word
  uint32_t entry;  // entry lane() of its list

  NF12_DEVICE static WideDecoder of(uint32_t shared, int wave) {
    using Plan = WidePlan<config>;
    const int group = wave / arch::kGroupWaves, lane = arch::lane();
    const uint32_t tile = shared + Plan::kEncoded + wave * kTileBytes;
    WideDecoder d = {};
    d.barriers = shared + Plan::kEncodedFilled;
    d.signs = tile + 16 * lane;
    d.codes = tile + kCodesOffset + 8 * lane;
    d.index_word = shared + Plan::kEncoded + Plan::kIndexWords + 4 * wave;
    d.list_entry = shared + Plan::kEncoded + Plan::kLists + wave * Plan::kListBytes + 4 * lane;
    d.rows = shared + Plan::kDecoded + group * Plan::kBuffers * Plan::kBufferBytes +
             wave % arch::kGroupWaves * Plan::kDecodedTileBytes;
    d.piece = d.rows + piece_byte(lane, 0);
    for (uint32_t* value : {&d.signs, &d.codes, &d.list_entry, &d.piece}) arch::hold(*value);
    return d;
  }
  NF12_DEVICE static uint32_t buffer_of(int number) {
    using Plan = WidePlan<config>;
    return static_cast<uint32_t>(number) % Plan::kBuffers * Plan::kBufferBytes;
  }
};

template <WideConfig config>
NF12_DEVICE void read_encoded(WideDecoder<config>& d, int number) {
  using Plan = WidePlan<config>;
  const auto ring = WideRing<Plan::kEncodedStages>::at(number);
  const uint32_t stage = ring.stage * Plan::kEncodedBytes;
  arch::wait_barrier(d.barriers + 8 * ring.stage, ring.parity);
  load_encoded(d.signs + stage, d.codes + stage, d.tile);
  d.word = arch::load_shared4(d.index_word + stage);
  d.entry = arch::peek_shared4(d.list_entry + stage);
}

// Eight columns, in their place in the buffer that is written: i 0 and 1 of the upper row, 2 and 3
// of the lower.
template <int i, WideConfig config>
NF12_DEVICE void decode_piece(const DecodeConstants& mask, const WideDecoder<config>& d,
                              uint32_t buffer) {
  arch::Words<4> out;
  decode_eight(d.tile.signs + 2 * i, d.tile.codes[i], mask, out.w);
  arch::store_shared16(piece_from_first(d.piece + buffer, i), out);
}

NF12_DEVICE void put_escape(uint32_t rows, uint32_t entry_bits) {
  const Escape escape = Escape::from_bits(entry_bits);
  arch::store_shared2(
      rows + block_byte(escape.position / kTileColumns, escape.position % kTileColumns),
      escape.value);
}

// A raw tile, or a list that is longer than what was fetched.
template <WideConfig config>
NF12_DEVICE void patch_far(const PackedView& weight, const WideDecoder<config>& d,
                           uint32_t buffer) {
  const IndexWord word = IndexWord::from_bits(d.word);
  const uint32_t* quads = weight.escapes + int64_t{word.quad} * kEntriesPerQuad;
  const int lane = arch::lane();
  if (!word.is_raw()) {
    put_escape(d.rows + buffer, d.entry);
    if (lane + kFetchedEntries < static_cast<int>(word.count))
      put_escape(d.rows + buffer, arch::load_words<1>(quads + lane + kFetchedEntries).w[0]);
    return;
  }
  const uint32_t first = d.piece + buffer;
  NF12_UNROLL
  for (int i = 0; i < 4; ++i)
    arch::store_shared16(piece_from_first(first, i), arch::load16(quads, raw_byte(lane, i)));
}

// Puts in the escapes of k-block `number`, just stored, and reads the next one. The fence that
// shows a tile to the matrix unit comes a turn later, before anything is read: it waits for every
// load before it. In this turn, between store and read, it costs 6 % (H200, m = 512, 2026-11-30).
template <WideConfig config>
NF12_DEVICE void finish_decoded(const PackedView& weight, WideDecoder<config>& d, int number,
                                bool more) {
  using Plan = WidePlan<config>;
  if (d.word != 0) {
    const uint32_t buffer = d.buffer_of(number);
    const int count = static_cast<int>(IndexWord::from_bits(d.word).count);
    arch::sync_wave();  // all lanes' weights are there to be written over
    if (count > kFetchedEntries)
      patch_far(weight, d, buffer);
    else if (arch::lane() < count)
      put_escape(d.rows + buffer, d.entry);
  }
  arch::sync_wave();
  const auto ring = WideRing<Plan::kEncodedStages>::at(number);
  if (arch::lane() == 0) arch::arrive_barrier(d.barriers + 8 * (Plan::kEncodedStages + ring.stage));
  if (more) read_encoded(d, number + 1);
}

}  // namespace nf12
