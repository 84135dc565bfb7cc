// torch's threads for csrc/cpu.
#pragma once
#include <torch/csrc/stable/c/shim.h>

#include <stdexcept>

#include "csrc/cpu/cpu.hpp"

namespace nf12::torch_ops {

inline cpu::Parallel torch_parallel() {
  uint32_t threads = 1;
  torch_get_num_threads(&threads);
  return {[](int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*),
             void* context) {
            if (torch_parallel_for(begin, end, grain, body, context) != AOTI_TORCH_SUCCESS)
              throw std::runtime_error("a worker thread failed");
          },
          threads};
}

}  // namespace nf12::torch_ops
