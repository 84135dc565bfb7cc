// The sums of a tile: left for the block that owns it, or gathered from others and written.
//
// A lane holds rows l / 4 and l / 4 + 8 of its wave's 16, and of each of them two neighbouring
// tokens of eight: sums[4 j + 2 half + i] is token 8 j + 2 (l % 4) + i.
#pragma once
#include "csrc/gemm/epilogue.hpp"
#include "csrc/gemm/wide/copies.hpp"

namespace nf12 {

// Of a wave that multiplies.
struct WidePlace {
  int group, wave;  // wave: of the group
  bool elected;     // one lane of the group

  NF12_DEVICE static WidePlace of(int wave) {
    return {wave / arch::kGroupWaves, wave % arch::kGroupWaves,
            wave % arch::kGroupWaves == 0 && arch::lane() == 0};
  }
};

NF12_DEVICE void sync_group(const WidePlace& place) { arch::sync_group(1 + place.group); }

template <WideConfig config>
NF12_DEVICE float* partials_of(const WideParams& p, const WidePlace& place, int block) {
  constexpr int kGroupFloats = WidePlan<config>::kSums * arch::kGroupLanes;
  return p.gemm.partials + (int64_t{block} * kWideGroups + place.group) * kGroupFloats +
         (place.wave * arch::kWave + arch::lane()) * 4;
}

template <WideConfig config>
NF12_DEVICE void leave_sums(const WideParams& p, const WidePlace& place,
                            const float (&sums)[WidePlan<config>::kSums]) {
  const int block = arch::block_x();
  float* to = partials_of<config>(p, place, block);
  NF12_UNROLL
  for (int i = 0; i < WidePlan<config>::kSums; i += 4)
    arch::store_far16(to + i * arch::kGroupLanes, sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
  arch::show_to_blocks();
  sync_group(place);
  if (place.elected) arch::raise_flag(p.flags + block * kWideGroups + place.group, p.flag);
}

// On top of ours, in the order of the blocks; then their flags are down again, for the next launch
// that is given the same memory with the same word (a graph that is replayed).
template <WideConfig config>
NF12_DEVICE void gather_sums(const WideParams& p, const WidePlace& place, const WideWalk& walk,
                             float (&sums)[WidePlan<config>::kSums]) {
  const int block = arch::block_x();
  const int from =
      WideWalk::block_of(p.shared_tiles * p.columns, walk.tile * p.columns, block - 1, p.blocks);
  uint64_t* flags = p.flags + place.group;
  if (place.elected) {
    NF12_NO_UNROLL
    for (int other = from; other < block; ++other)
      arch::await_flag(flags + other * kWideGroups, p.flag);
  }
  sync_group(place);
  NF12_NO_UNROLL
  for (int other = from; other < block; ++other) {
    const float* at = partials_of<config>(p, place, other);
    NF12_UNROLL
    for (int i = 0; i < WidePlan<config>::kSums; i += 4)
      arch::add_far16(at + i * arch::kGroupLanes, sums + i);
  }
  if (place.elected) {
    NF12_NO_UNROLL
    for (int other = from; other < block; ++other) flags[other * kWideGroups] = 0;
  }
}

// Of the lane's two rows.
struct WideBias {
  float row[2];
};
NF12_DEVICE WideBias load_bias(const GemmParams& p, int first_row) {
  WideBias bias = {{kNoBias, kNoBias}};
  if (p.bias == nullptr) return bias;
  NF12_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + arch::lane() / 4 + 8 * half;
    if (row < static_cast<int>(p.weight.n))
      bias.row[half] = float_from_bf16(arch::load2(p.bias + row, 0));
  }
  return bias;
}

// A group's 64 rows from `row` on, all tokens from `token` on.
struct WideOutput {
  int row, token;
  uint32_t staging[2];  // of 64 tokens x 64 rows each
};

// 64 tokens at a time, transposed. What lies past the last row or token the copy leaves out.
template <int tokens>
NF12_DEVICE void store_outputs(const WideParams& p, const WidePlace& place, const WideOutput& out,
                               const WideBias& bias, const float (&sums)[tokens / 2]) {
  constexpr int kPart = 64;
  const int lane = arch::lane();
  NF12_UNROLL
  for (int part = 0; part < tokens / kPart; ++part) {
    const uint32_t staging = out.staging[part % 2];
    if (place.elected) arch::await_boxes_read<1>();
    sync_group(place);
    NF12_UNROLL
    for (int q = 0; q < kPart / 16; ++q) {
      arch::Words<4> pairs;
      NF12_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* pair = sums + kPart / 2 * part + 8 * q + 2 * i;
        pairs.w[i] = arch::bf16_pair(__builtin_fmaf(pair[0], p.gemm.scale, bias.row[i % 2]),
                                     __builtin_fmaf(pair[1], p.gemm.scale, bias.row[i % 2]));
      }
      const int token = 16 * q + 8 * (lane / 16) + lane % 8;  // that this lane names
      const int row = 16 * place.wave + lane / 8 % 2 * 8;
      arch::store_transposed(staging + block_byte(token, row), pairs);
    }
    arch::show_to_copies();
    sync_group(place);
    if (place.elected) arch::store_box(&p.y_map, staging, out.row, out.token + kPart * part);
  }
}

}  // namespace nf12
