// Kernels that are given tensor maps: made for the card's copies of the buffers, or as the host
// model reads them.
#pragma once
#include "csrc/gemm/tensor_map.hpp"
#include "tests/host_model/machine.hpp"

namespace nf12::test {

struct MapOfBuffer {
  size_t offset;        // of the TensorMap in the kernel's arguments
  TensorLayout layout;  // base: in one of the launch's buffers
};

// `arguments`: those that `body` takes; the model puts its maps there.
void run_kernel(const arch::host::Launch& launch, std::span<std::byte> arguments,
                std::span<const MapOfBuffer> maps, const std::function<void()>& body);

}  // namespace nf12::test
