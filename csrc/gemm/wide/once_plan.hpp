// The shared memory of the kernel that decodes once, and the sizes of its pieces.
#pragma once
#include "csrc/gemm/wide/plan.hpp"

namespace nf12 {

inline constexpr int kOnceBlocks = 2;  // of a cluster; they share x
inline constexpr int kOnceGroup = 4;   // tile columns that are counted together
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
  static constexpr int kAlignment = 1024;
  static constexpr int kSharedBytes = kRead + 8 * kStages + kAlignment;
  static_assert(kStageBytes % kAlignment == 0 && kSharedBytes <= 227 * 1024);
};

}  // namespace nf12
