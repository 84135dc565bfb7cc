// The shared memory of one compiled streaming kernel.
#pragma once
#include "csrc/format/layout.hpp"
#include "csrc/gemm/stream/config.hpp"
#include "csrc/gemm/stream/patch.hpp"

namespace nf12 {

template <StreamConfig config>
struct StreamPlan {
  static constexpr int kTokens = config.tokens;
  static constexpr int kWaves = config.waves;
  static constexpr int kGroups = kTokens / 8;  // a matrix instruction takes 8 tokens
  static constexpr int kStages = 2;            // tiles of a wave's ring
  static constexpr int kStageWords = kTileBytes / 4;
  static constexpr int kRingWords = kStages * kStageWords;
  static constexpr int kSegmentFloats = kTokens * kTileRows;

  static constexpr int kRings = 0;  // in words of the block's shared memory
  static constexpr int kRest = kRings + kWaves * kRingWords;
  static constexpr int kPlane = kRest + kWaves * kRestWords;
  static constexpr int kRows = kPlane + kWaves * 2 * kSegmentFloats;  // of each, see note_rows
  static constexpr int kSharedBytes = 4 * (kRows + 2 * (kWaves + 1));

  static_assert(kTokens % 8 == 0 && 2 * kWaves % kTokens == 0);
};

}  // namespace nf12
