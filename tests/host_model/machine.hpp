// Where the kernels of a test run. The tests are the same; which machine it is the linker decides:
//
//   tests/host_model/machine.cpp   the host model, CPU, every access and meeting checked
//   tests/nvidia/machine.cpp       an NVIDIA card, kernels by their shipped names
#pragma once
#include <cstddef>
#include <functional>
#include <span>

#include "csrc/arch/host/model.hpp"

namespace nf12::test {

// Runs the kernel named `launch.kernel` over the whole grid. `arguments`: its parameters as the
// driver takes them, pointers being those of launch.buffers. `body`: the same kernel, one lane of
// the host model. Whatever goes wrong is thrown as a Report.
void run_kernel(const arch::host::Launch& launch, std::span<const std::byte> arguments,
                const std::function<void()>& body);

template <typename Params>
void run_kernel(const arch::host::Launch& launch, const Params& params,
                const std::function<void()>& body) {
  run_kernel(launch, std::as_bytes(std::span(&params, 1)), body);
}

// Whether a matrix instruction adds in the order that arch/host/policy.hpp writes down.
extern const bool kMatrixOrderIsKnown;

// Whether there is time for all cases of a test whose launches take the model seconds.
extern const bool kMachineIsFast;

// Of a test's cases: all where there is time, else one in so many from case `first` on, chosen such
// that the tests together have every compiled form with everything that it may meet.
class Cases {
 public:
  explicit Cases(int one_in, int first = 0)
      : one_in_(kMachineIsFast ? 1 : one_in), number_(kMachineIsFast ? 0 : one_in - first) {}
  bool takes_next() { return number_++ % one_in_ == 0; }

 private:
  int one_in_, number_;
};

// Blocks of a problem that fills the machine: all its processors run at once.
extern const int kMachineBlocks;

}  // namespace nf12::test
