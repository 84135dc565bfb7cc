// GEMM for many tokens on the matrix unit of sm_90a: y[t, j] = sum_k x[t, k] W[j, k].
//
// Bound by that unit and, beside it, by the decoding: 128 rows x 64 columns are decoded for as many
// tokens as a tile has, in the shadow of their products.
//
//   waves 0..7   two groups, 64 rows of W each. The matrix unit takes both operands from shared
//                memory; between the four instructions of a k-block each wave decodes its 16 rows
//                of the second next one, into a buffer of its group
//   wave 8       x, and at a tile's end the sums of other blocks;  wave 9  encoded tiles;  wave 10
//                index words and lists (copies.hpp)
//
//        encoded ring --> registers --> four buffers a group ---+
//                                        (A, 64 rows)           +--> sums in registers
//        ring of x ---------------------- (B, all tokens) ------+
//
// A block a multiprocessor, for the whole launch. No barrier of the block after the start, no
// barrier at all for weights but the group's: a group decodes its own. Where whole tiles divide
// badly among the blocks, the first ones are shared out (walk.hpp) and their sums meet in memory.
//
// Launched with the dependent-launch attribute, a block starts while the kernel before it still
// runs: it brings its first tiles to the L2, and neither reads nor writes before the wait.
//
// Order of a sum: the k-blocks of a piece ascending, in the hardware's own order within one; then
// to the owner's own piece those of the others, by block. Equal launches give equal bits.
// Not handled (wide_choice): k off a multiple of 64, n off one of 8; x, y or rows of theirs off 16
// bytes.
#pragma once
#include "csrc/gemm/wide/outputs.hpp"
#include "csrc/gemm/wide/weights.hpp"

namespace nf12 {

// K-blocks that a block multiplies while its sums are on their way to memory.
inline constexpr int kTellLater = 3;

// The sums of one k-block set out; weights of the second next are decoded meanwhile.
template <WideConfig config>
NF12_DEVICE void multiply_and_decode(uint32_t a, uint32_t b, bool add, const DecodeConstants& mask,
                                     const WideDecoder<config>& d, uint32_t buffer,
                                     float (&sums)[WidePlan<config>::kSums]) {
  arch::open_products();
  arch::multiply_shared(sums, a, b, add);
  decode_piece<0>(mask, d, buffer);
  arch::multiply_shared(sums, a + arch::kOperandStep, b + arch::kOperandStep, true);
  decode_piece<1>(mask, d, buffer);
  arch::multiply_shared(sums, a + 2 * arch::kOperandStep, b + 2 * arch::kOperandStep, true);
  decode_piece<2>(mask, d, buffer);
  arch::multiply_shared(sums, a + 3 * arch::kOperandStep, b + 3 * arch::kOperandStep, true);
  arch::close_products();
  decode_piece<3>(mask, d, buffer);
}

template <WideConfig config>
NF12_DEVICE void multiply_tiles(const WideParams& p, uint32_t shared, WideWalk walk) {
  using Plan = WidePlan<config>;
  const int wave = arch::wave(), lane = arch::lane();
  const PackedView& weight = p.gemm.weight;
  const DecodeConstants mask;
  const WidePlace place = WidePlace::of(wave);
  const uint32_t buffers =
      shared + Plan::kDecoded + place.group * Plan::kBuffers * Plan::kBufferBytes;
  const uint32_t a = arch::operand_at(buffers);
  const uint32_t b = arch::operand_at(shared + Plan::kTokenRing);
  float sums[Plan::kSums] = {};

  WideDecoder<config> decoder = WideDecoder<config>::of(shared, wave);
  const int total = walk.total();
  read_encoded(decoder, 0);
  NF12_UNROLL
  for (int first = 0; first < Plan::kAhead; ++first) {
    if (first >= total) break;
    decode_piece<0>(mask, decoder, first * Plan::kBufferBytes);
    decode_piece<1>(mask, decoder, first * Plan::kBufferBytes);
    decode_piece<2>(mask, decoder, first * Plan::kBufferBytes);
    decode_piece<3>(mask, decoder, first * Plan::kBufferBytes);
    finish_decoded(weight, decoder, first, first + 1 < total);
  }
  arch::show_to_copies();
  sync_group(place);

  int done = 0;     // k-blocks
  int turn = 0;     // stages of the ring of x
  int tell_at = 0;  // so many k-blocks: what the block has left for another one is there by then
  NF12_NO_UNROLL
  while (walk.next()) {
    int before = 0;
    NF12_NO_UNROLL
    for (int column = walk.first; column < walk.last; ++column) {
      const auto ring = WideRing<Plan::kTokenStages>::at(turn);
      arch::show_to_copies();  // what the turn before stored: nothing is in flight to wait for
      arch::wait_barrier(shared + Plan::kTokensFilled + 8 * ring.stage, ring.parity);
      // Past the last tile this decodes the last one again, into a buffer that nobody reads.
      const int ahead = done + Plan::kAhead;
      multiply_and_decode(a + decoder.buffer_of(done) / 16,
                          b + ring.stage * (Plan::kTokenBytes / 16), column > walk.first, mask,
                          decoder, decoder.buffer_of(ahead), sums);
      if (ahead < total) finish_decoded(weight, decoder, ahead, ahead + 1 < total);
      arch::await_products<1>();  // of the k-block before: its x and its buffer are free
      if (column > walk.first && lane == 0)
        arch::arrive_barrier(shared + Plan::kTokensRead + 8 * before);
      before = ring.stage;
      ++done;
      ++turn;
      sync_group(place);
      if (done == tell_at && place.elected) tell_sums(p, place);
    }
    const int row = first_tile_row(p, walk) * kTileRows + place.group * (kWideRows / kWideGroups);
    const WideBias bias = load_bias(p.gemm, row + kTileRows * place.wave);
    arch::await_products<0>();
    arch::settle_sums(sums);
    if (lane == 0) arch::arrive_barrier(shared + Plan::kTokensRead + 8 * before);
    // Through the two buffers that hold no weights now.
    const WideOutput out = {
        row,
        first_token(p, walk, Plan::kTokens),
        {buffers + decoder.buffer_of(done + 3), buffers + decoder.buffer_of(done + 2)}};
    if (walk.leaves()) {
      leave_sums<config>(p, place, out.staging, sums);
      tell_at = done + kTellLater;
    } else {
      if (tell_at > done) {
        if (place.elected) tell_sums(p, place);
        tell_at = 0;
      }
      if (walk.gathers()) turn = gather_sums<config>(p, place, walk, shared, turn, sums);
      store_outputs<Plan::kTokens>(p, place, out, bias, sums);
    }
    if (done < total) {  // the buffers are for weights again
      if (place.elected) arch::await_boxes_read<0>();
      sync_group(place);
    }
  }
  if (!place.elected) return;
  if (tell_at > done) tell_sums(p, place);
  arch::await_boxes_written();
}

// Before the wait: barriers, and the first tiles of each wave to the L2.
template <WideConfig config>
NF12_DEVICE void open_block(const WideParams& p, uint32_t shared, WideWalk walk) {
  using Plan = WidePlan<config>;
  const int wave = arch::wave(), lane = arch::lane();
  if (wave == kTokenWave && lane == 0) {
    for (int i = 0; i < Plan::kTokenStages; ++i) {
      arch::open_barrier(shared + Plan::kTokensFilled + 8 * i, 1);
      arch::open_barrier(shared + Plan::kTokensRead + 8 * i, kTokenWave);
    }
    for (int i = 0; i < Plan::kEncodedStages; ++i) {
      arch::open_barrier(shared + Plan::kEncodedFilled + 8 * i, 2);  // tiles, index words
      arch::open_barrier(shared + Plan::kEncodedRead + 8 * i, kWideTileRows);
    }
    arch::show_barriers();
    arch::prefetch_map(&p.x_map);
    arch::prefetch_map(&p.encoded_map);
    arch::prefetch_map(&p.y_map);
  }
  if (wave < kWideTileRows && lane == 0 && walk.next()) {
    const PackedView& weight = p.gemm.weight;
    const int row = first_tile_row(p, walk) + wave, last_row = tile_rows_of(weight) - 1;
    const int64_t first = row < last_row ? row : last_row;
    const int count = walk.last - walk.first;
    arch::prefetch_bytes(weight.tile(first, walk.first), kTileBytes * (count < 4 ? count : 4));
    arch::prefetch(weight.index + first * weight.index_stride + walk.first);
  }
}

template <WideConfig config>
NF12_DEVICE void wide_gemm(const WideParams& p) {
  using Plan = WidePlan<config>;
  NF12_SHARED_AT_LAUNCH(uint32_t, memory, Plan::kSharedBytes / 4);
  const uint32_t shared = (arch::shared_address(memory, 0) + Plan::kAlignment - 1) &
                          ~static_cast<uint32_t>(Plan::kAlignment - 1);
  const int wave = arch::wave(), lane = arch::lane();
  const WideWalk walk = WideWalk::of(p, arch::block_x());
  arch::start_successor();
  open_block<config>(p, shared, walk);
  arch::sync_block();
  arch::await_predecessor();
  // What all waves are launched with, 12 x 32 x 168, shared out anew.
  if (wave < kTokenWave) {
    arch::take_registers<232>();
    multiply_tiles<config>(p, shared, walk);
    return;
  }
  arch::give_registers<40>();
  if (wave == kTokenWave && lane == 0) copy_tokens<config>(p, shared, walk);
  if (wave == kEncodedWave && lane == 0) copy_encoded<config>(p, shared, walk);
  if (wave == kListWave) copy_lists<config>(p, shared, walk);
}

}  // namespace nf12
