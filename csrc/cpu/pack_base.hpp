// The choice of the window's base from a survey of all exponents.
#pragma once
#include "csrc/cpu/pack_kernels.hpp"

namespace nf12::cpu {

// Whether every weight outside the window of `base` is exact in the side table, and no normal one
// becomes subnormal there (hardware may flush those).
bool base_keeps_bits(const ExponentSurvey& survey, int base);

// The allowed base with the least of (escapes, |base - 112|, base).
int choose_base(const ExponentSurvey& survey);

}  // namespace nf12::cpu
