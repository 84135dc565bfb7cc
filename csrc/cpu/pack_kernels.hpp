// The inner loops of packing, one set per instruction level. All work on a full tile of weights;
// the caller copies the edge of a matrix into one first, padded with weights that encode to zero
// bits.
#pragma once
#include <cstdint>

#include "csrc/cpu/level.hpp"
#include "csrc/format/layout.hpp"
#include "csrc/format/scale.hpp"

namespace nf12::cpu {

// What the choice of a base needs to know of all weights.
struct ExponentSurvey {
  uint64_t counts[256] = {};    // weights with each biased exponent
  uint32_t subnormal_bits = 0;  // OR of the mantissas of all subnormals
};

struct PackKernels {
  // Adds the tile w [16, 64] to the survey; returns how many weights lie outside the window.
  int (*survey_tile)(const uint16_t* w, int64_t row_stride, int base, ExponentSurvey* survey);

  // Writes the 1,536 bytes of a tile, zero bits for weights outside the window, and for each row
  // the columns of those as bits of escape_columns [16].
  void (*encode_tile)(const uint16_t* w, int64_t row_stride, int base, uint8_t* tile,
                      uint64_t* escape_columns);
};

extern const PackKernels kPackPortable;
extern const PackKernels kPackAvx2;

inline const PackKernels& pack_kernels(Level level) {
  if constexpr (kX86) {
    if (level >= Level::kAvx2) return kPackAvx2;
  }
  return kPackPortable;
}

// Adds one weight to the survey.
NF12_INLINE void survey_weight(uint16_t bits, ExponentSurvey* survey) {
  const int exponent = biased_exponent(bits);
  ++survey->counts[exponent];
  if (exponent == 0) survey->subnormal_bits |= bits & 0x7F;
}

}  // namespace nf12::cpu
