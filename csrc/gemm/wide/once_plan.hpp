// The shared memory of the kernel that decodes once, and the sizes of its pieces.
#pragma once
#include "csrc/gemm/wide/plan.hpp"

namespace nf12 {

inline constexpr int kOnceBlocks = 2;  // of a cluster; they share x
inline constexpr int kOnceGroup = 4;   // tile columns that are counted together
// How many groups ahead of the copies a block decodes. Against no limit (H200, 2026-11-30, 8192 x
// 8192): 1024 tokens 195 us and 206, 2048 tokens 363 and 376; with 8 groups 200 and 366.
inline constexpr int kOnceLead = 4;
inline constexpr int kOnceBlockBytes = kWideRows * kWideColumns * 2;  // decoded, a k-block

template <int tokens>
struct OncePlan {
  static constexpr int kStages = 4;
  static constexpr int kGroupBytes = kOnceBlockBytes / kWideGroups;
  // A stage: weights, then x.
  static constexpr int kStageBytes = kOnceBlockBytes + tokens * kWideColumns * 2;
  static constexpr int kStaging = kStages * kStageBytes;  // of outputs, two a group
  static constexpr int kFilled = kStaging + 2 * kWideGroups * kGroupBytes;  // barriers
  static constexpr int kRead = kFilled + 8 * kStages;
  static constexpr int kPosition = kRead + 8 * kStages;  // a word
  static constexpr int kAlignment = 1024;
  static constexpr int kSharedBytes = kPosition + 8 + kAlignment;
  static_assert(kStageBytes % kAlignment == 0 && kSharedBytes <= 227 * 1024);
};

}  // namespace nf12
