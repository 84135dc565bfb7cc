#include "csrc/cpu/pack_base.hpp"

#include <cstdlib>
#include <numeric>
#include <tuple>

#include "csrc/format/scale.hpp"

namespace nf12::cpu {

bool base_keeps_bits(const ExponentSurvey& survey, int base) {
  const int shift = scale_shift(base);
  for (int up = 0; up < shift; ++up) {
    if (survey.counts[kInfExponent - 1 - up] != 0) return false;  // would overflow
  }
  for (int down = 0; down < -shift; ++down) {
    if (survey.counts[1 + down] != 0) return false;  // would become subnormal
  }
  return shift >= 0 || (survey.subnormal_bits & ((1u << -shift) - 1)) == 0;
}

int choose_base(const ExponentSurvey& survey) {
  const uint64_t* counts = survey.counts;
  const uint64_t total = std::accumulate(counts, counts + 256, uint64_t{0});
  const auto cost = [&](int base) {
    const uint64_t coded = std::accumulate(counts + base, counts + base + kWindow, uint64_t{0});
    return std::tuple(total - coded, std::abs(base - kNeutralBase), base);
  };
  int best = kNeutralBase;
  for (int base = kMinBase; base <= kMaxBase; ++base) {
    if (base_keeps_bits(survey, base) && cost(base) < cost(best)) best = base;
  }
  return best;
}

}  // namespace nf12::cpu
