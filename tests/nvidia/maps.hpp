// Kernels that are given tensor maps: made for the card's copies of the buffers.
#pragma once
#include "csrc/gemm/tensor_map.hpp"
#include "tests/host_model/machine.hpp"

namespace nf12::test {

struct MapOfBuffer {
  size_t offset;        // of the TensorMap in the kernel's arguments
  TensorLayout layout;  // base: in one of the launch's buffers
};

void run_kernel(const arch::host::Launch& launch, std::span<const std::byte> arguments,
                std::span<const MapOfBuffer> maps);

}  // namespace nf12::test
