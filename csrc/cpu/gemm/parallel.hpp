// Parallel::run for a callable body(begin, end).
#pragma once
#include "csrc/cpu/cpu.hpp"

namespace nf12::cpu {

template <class Body>
NF12_INLINE void for_ranges(const Parallel& parallel, int64_t count, const Body& body) {
  parallel.run(
      0, count, 1,
      [](int64_t begin, int64_t end, void* context) {
        (*static_cast<const Body*>(context))(begin, end);
      },
      const_cast<Body*>(&body));
}

}  // namespace nf12::cpu
