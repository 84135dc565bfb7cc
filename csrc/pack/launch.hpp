// From dense weights to the launches of the packing kernels. Host code; pure.
//
//   survey                     zero `exponents` and `subnormal_bits` first
//     host: take_off_padding, then the base by the rules of csrc/cpu/pack_base.hpp
//   count
//     host: RawOwners of counts and hashes
//   compare, as long as RawOwners::pairs is not empty
//     host: assign_words; allocate the table; upload the index words and the owners
//   encode, and raw if there are owners; in any order
#pragma once
#include <algorithm>

#include "csrc/pack/params.hpp"
#include "csrc/pack/survey.hpp"
#include "csrc/pack/table.hpp"

namespace nf12 {

// Blocks of kPackWaves waves; any number is right. A block of survey pays for its 256 sums, so few
// blocks with many tiles each.
inline constexpr int64_t kSurveyMostBlocks = 1024;
inline constexpr int64_t kPackMostBlocks = 1 << 20;

constexpr int64_t pack_blocks(int64_t waves, int64_t most) {
  return std::clamp((waves + kPackWaves - 1) / kPackWaves, int64_t{1}, most);
}

// Steps for a launch of `blocks` of survey, count or encode.
constexpr void set_pack_steps(PackParams& p, int64_t experts, int64_t blocks) {
  p.steps = tile_steps(experts, p.source.n, p.source.k, blocks * kPackWaves);
}

// Which of the instances _a16, _a2 may read the source.
inline int pack_alignment(const DenseStack<const uint16_t>& source, int64_t experts) {
  const uint64_t rows = reinterpret_cast<uintptr_t>(source.weights) | source.row_stride * 2;
  const int alignment = alignment_of(experts > 1 ? rows | source.expert_stride * 2 : rows);
  return alignment == 16 ? 16 : 2;
}

// The survey saw the padding of the last tiles as zeros.
constexpr void take_off_padding(int64_t experts, int64_t n, int64_t k,
                                uint64_t (&exponents)[kExponents]) {
  const int64_t all = experts * tile_rows(n) * tile_columns(k) * kTileWeights;
  exponents[0] -= static_cast<uint64_t>(all - experts * n * k);
}

}  // namespace nf12
