#include "tests/host_model/machine.hpp"

namespace nf12::test {

const bool kMatrixOrderIsKnown = true;
const int kMachineBlocks = 3;  // one after the other

void run_kernel(const arch::host::Launch& launch, std::span<const std::byte>,
                const std::function<void()>& body) {
  arch::host::run(launch, body);
}

}  // namespace nf12::test
