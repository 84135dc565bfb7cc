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

// Sums that blocks exchange: four of a lane beside four of the next one, then the next four. Where
// a lane's begin, and its sum i, a multiple of 4, from there on.
NF12_DEVICE uint32_t lanes_sums(const WidePlace& place) {
  return 16 * (place.wave * arch::kWave + arch::lane());
}
NF12_INLINE constexpr uint32_t sum_byte(int i) { return 4 * arch::kGroupLanes * i; }

// For the owner of the tile, by copies that go on while the next piece is multiplied: 16 sums of
// every lane at a time, through two buffers of decoded weights that hold none. `tell_sums` waits
// for them.
template <WideConfig config>
NF12_DEVICE void leave_sums(const WideParams& p, const WidePlace& place,
                            const uint32_t (&staging)[2],
                            const float (&sums)[WidePlan<config>::kSums]) {
  using Plan = WidePlan<config>;
  constexpr int kPart = Plan::kBufferBytes / 4 / arch::kGroupLanes;
  float* to = partials_of<config>(p, arch::block_x(), place.group);
  NF12_UNROLL
  for (int part = 0; part < Plan::kSums / kPart; ++part) {
    const uint32_t lanes = staging[part % 2] + lanes_sums(place);
    if (place.elected) arch::await_boxes_read<1>();
    sync_group(place);
    NF12_UNROLL
    for (int i = 0; i < kPart; i += 4) {
      arch::Words<4> words;
      NF12_UNROLL
      for (int j = 0; j < 4; ++j)
        words.w[j] = __builtin_bit_cast(uint32_t, sums[kPart * part + i + j]);
      arch::store_shared16(lanes + sum_byte(i), words);
    }
    arch::show_to_copies();
    sync_group(place);
    if (place.elected)
      arch::store_bytes(to + part * kPart * arch::kGroupLanes, staging[part % 2],
                        Plan::kBufferBytes);
  }
}
// The elected lane.
NF12_DEVICE void tell_sums(const WideParams& p, const WidePlace& place) {
  arch::await_boxes_written();
  arch::raise_flag(p.flags + arch::block_x() * kWideGroups + place.group, p.flag);
}

// On top of ours, in the order of the blocks: they come through the ring of x, from its stage
// `turn` on, a quarter of a block's at a time (copy_sums).
template <WideConfig config>
NF12_DEVICE int gather_sums(const WideParams& p, const WidePlace& place, const WideWalk& walk,
                            uint32_t shared, int turn, float (&sums)[WidePlan<config>::kSums]) {
  using Plan = WidePlan<config>;
  const int block = arch::block_x();
  NF12_NO_UNROLL
  for (int other = walk.first_helper(p, block); other < block; ++other) {
    NF12_UNROLL
    for (int part = 0; part < Plan::kSumParts; ++part) {
      const auto ring = WideRing<Plan::kTokenStages>::at(turn);
      const uint32_t from = shared + Plan::kTokenRing + ring.stage * Plan::kTokenBytes +
                            place.group * Plan::kPartBytes + lanes_sums(place);
      arch::wait_barrier(shared + Plan::kTokensFilled + 8 * ring.stage, ring.parity);
      NF12_UNROLL
      for (int i = 0; i < Plan::kSums / Plan::kSumParts; i += 4) {
        const arch::Words<4> words = arch::load_shared16(from + sum_byte(i));
        NF12_UNROLL
        for (int j = 0; j < 4; ++j)
          sums[Plan::kSums / Plan::kSumParts * part + i + j] +=
              __builtin_bit_cast(float, words.w[j]);
      }
      arch::sync_wave();
      if (arch::lane() == 0) arch::arrive_barrier(shared + Plan::kTokensRead + 8 * ring.stage);
      ++turn;
    }
  }
  return turn;
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
