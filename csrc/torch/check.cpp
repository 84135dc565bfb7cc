// nf12::check: the reader's rules of docs/format.md on a packed weight that came from outside.
#include "csrc/format/check.hpp"

#include "csrc/cpu/cpu.hpp"
#include "csrc/torch/arguments.hpp"
#include "csrc/torch/checks.hpp"
#include "csrc/torch/error.hpp"
#include "csrc/torch/ops.hpp"
#include "csrc/torch/parallel.hpp"

namespace nf12::torch_ops {

void Check::run(StableIValue* stack) {
  Arguments arguments(stack);
  const PackedArguments packed = arguments.packed();
  const int64_t version = arguments.integer();
  if (version != kFormatVersion)
    fail(kName, "meta: this library reads version ", kFormatVersion, ": ", version);
  const Packed w = check_packed(kName, packed, Experts::kAllowed);
  check_kernels(kName, w.device);

  const cpu::Parallel parallel = torch_parallel();
  for (int64_t x = 0; x < w.experts; ++x)
    if (const Violation v = cpu::check(w.expert(x), w.is_stack ? x : -1, parallel))
      fail(kName, cpu::describe(v));
}

}  // namespace nf12::torch_ops
