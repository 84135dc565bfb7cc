// The shared memory of one compiled cluster kernel.
#pragma once
#include "csrc/format/layout.hpp"
#include "csrc/gemm/cluster/config.hpp"
#include "csrc/gemm/stream/patch.hpp"

namespace nf12 {

template <ClusterConfig config>
struct ClusterPlan {
  static constexpr int kTokens = config.tokens;
  static constexpr int kWaves = config.waves;
  static constexpr int kThreads = (kWaves + 1) * arch::kWave;  // one wave more fetches x
  static constexpr int kStages = config.stages;
  static constexpr int kColumns = config.columns;
  static constexpr int kGroups = kTokens / 8;  // a matrix instruction takes 8 tokens

  // One tile column of x. 16 bytes more than 64 columns need: the eight lanes that read at once,
  // two tokens of four pieces, are then in different banks.
  static constexpr int kPitchWords = kTileColumns / 2 + 4;
  static constexpr int kColumnWords = kTokens * kPitchWords;
  static constexpr int kTileWords = kTileBytes / 4;
  static constexpr int kRingWords = kStages * kTileWords;  // of a wave

  // Sums of a tile row that one block adds up: token pairs of a row at permuted places, so that
  // neither lanes with four pairs of eight rows nor those with one pair of 16 rows meet in a bank.
  static constexpr int kSegmentWords = kTileRows * kTokens;

  static constexpr int kTokenRing = 0;  // in words of the block's shared memory
  static constexpr int kRings = kTokenRing + kColumns * kColumnWords;
  static constexpr int kRest = kRings + kWaves * kRingWords;
  static constexpr int kFilled = kRest + kWaves * kRestWords;  // barriers: a column of x is there
  static constexpr int kEmptied = kFilled + 2 * kColumns;      // all waves are done with it
  static constexpr int kGathered = kEmptied + 2 * kColumns;    // all sums of the block's rows came
  static constexpr int kPlane = (kGathered + 2 + 3) / 4 * 4;
  // Segments of the tile rows that each of `blocks` adds up.
  NF12_INLINE static constexpr int shared_bytes(int rows, int turns, int blocks) {
    return 4 * (kPlane + (rows + blocks - 1) / blocks * blocks * turns * kSegmentWords);
  }

  static_assert(kTokens % 8 == 0);
};

}  // namespace nf12
