// x as lanes decode. The matrix unit takes 16 columns a step and wants a lane of A to have four of
// them, a pair of each eight; a lane that decodes holds 16 neighbouring columns of a row. So step s
// multiplies columns 4 s .. 4 s + 3 of all four lanes, and x has its columns in that order (a
// bijection of 64; the sum may take any):
//
//     column 16 t + 4 s + 2 h + i   lies at   16 s + 8 h + 2 t + i         t, s < 4; h, i < 2
//
// In pieces of 16 bytes, of four words: word c % 4 of pieces (c / 4, c / 4 + 2, .. + 6) become the
// words of piece c. The tensor unit moves no less than a piece, so waves do it: a lane reads
// four pieces and writes four. Copies of four bytes that go where they belong at once take
// 15 cycles a warp's instruction, which is twice as long as the weights of a column (H200,
// 2026-11-30).
#pragma once
#include "csrc/gemm/warpgroup/tokens.hpp"

namespace nf12 {

// One lane.
template <WarpgroupConfig config>
NF12_DEVICE void copy_tokens(const WarpgroupParams& p, const WarpgroupPlace& place,
                             const arch::Shared<uint32_t>& shared) {
  using Plan = WarpgroupPlan<config>;
  RingPlace ring;
  NF12_NO_UNROLL
  for (int t = 0; t < place.columns; ++t) {
    if (ring.phase > 0) arch::wait_barrier(shared, Plan::kRead + 2 * ring.column, ring.phase - 1);
    copy_column<config>(p, place, t, ring.column, shared);
    ring.advance(1, Plan::kColumns);
  }
}

template <int words>
NF12_DEVICE arch::Words<words> load_piece(uint32_t at) {
  if constexpr (words == 4)
    return arch::load_shared16(at);
  else
    return arch::load_shared8(at);
}

// A whole wave, one of kPermuters: every so many tokens of a column, 16 at a time. A lane has the
// even pieces of a row or the odd ones; where registers are few (kPieceWords 2) half of each, and a
// wave eight tokens. Whoever accesses at once is in different banks. Where a piece lies in its row
// is an exclusive or, so all pieces of a lane follow from its first one.
template <WarpgroupConfig config>
NF12_DEVICE void permute_tokens(const WarpgroupPlace& place, int permuter,
                                const arch::Shared<uint32_t>& shared) {
  using Plan = WarpgroupPlan<config>;
  constexpr int kWords = Plan::kPieceWords, kTogether = Plan::kTogether;
  constexpr int kRows = 4 * kWords, kStep = kRows * Plan::kPermuters;
  constexpr bool kEven = Plan::kTokens % (kTogether * kStep) == 0;
  const int lane = arch::lane();
  const uint32_t row = lane % 8 + (kWords == 4 ? lane / 16 * 8 : 0);
  const uint32_t parity = kWords == 4 ? lane / 8 % 2 : lane / 16;
  const uint32_t word = kWords == 4 ? 0 : lane / 8 % 2 * kWords;
  const uint32_t from = block_byte(row, 8 * parity + 2 * word);
  const uint32_t to = block_byte(row, 8 * (4 * parity + word));
  RingPlace ring;
  NF12_NO_UNROLL
  for (int t = 0; t < place.columns; ++t) {
    arch::wait_barrier(shared, Plan::kCopied + 2 * ring.column, ring.phase);
    const uint32_t column =
        arch::shared_address(shared, Plan::kTokenRing + ring.column * Plan::kColumnWords);
    NF12_NO_UNROLL
    for (int token = kRows * permuter; token < Plan::kTokens; token += kTogether * kStep) {
      const uint32_t tokens = column + 128 * token;
      arch::Words<kWords> in[kTogether][4];
      NF12_UNROLL
      for (int i = 0; i < kTogether; ++i) NF12_UNROLL
      for (int q = 0; q < 4; ++q)
        if (kEven || token + i * kStep < Plan::kTokens)
          in[i][q] = load_piece<kWords>(((tokens + from) ^ 32u * q) + i * kStep * 128);
      arch::sync_wave();
      NF12_UNROLL
      for (int i = 0; i < kTogether; ++i) NF12_UNROLL
      for (int j = 0; j < kWords; ++j)
        if (kEven || token + i * kStep < Plan::kTokens)
          arch::store_shared16(((tokens + to) ^ 16u * j) + i * kStep * 128,
                               {{in[i][0].w[j], in[i][1].w[j], in[i][2].w[j], in[i][3].w[j]}});
    }
    arch::show_to_copies();
    arch::sync_wave();
    if (lane == 0) arch::arrive_barrier(shared, Plan::kReady + 2 * ring.column);
    ring.advance(1, Plan::kColumns);
  }
}

}  // namespace nf12
