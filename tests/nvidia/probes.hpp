#pragma once
#include <cstdint>

namespace nf12 {

struct ProbeParams {
  uint8_t* out;
  const uint8_t* in;
  int64_t at;  // from `out`
  uint8_t value;
};

}  // namespace nf12
