// nf12::check: the reader's rules of docs/format.md on a packed weight that came from outside. On a
// GPU it waits for the answer.
#include "csrc/format/check.hpp"

#include "csrc/cpu/cpu.hpp"
#include "csrc/torch/arguments.hpp"
#include "csrc/torch/checks.hpp"
#include "csrc/torch/error.hpp"
#include "csrc/torch/gpu.hpp"
#include "csrc/torch/ops.hpp"
#include "csrc/torch/parallel.hpp"

namespace nf12::torch_ops {
namespace {

constexpr const char* kOp = Check::kName;

Violation run_cpu(const Packed& w) {
  const cpu::Parallel parallel = torch_parallel();
  for (int64_t x = 0; x < w.experts; ++x)
    if (const Violation violation = cpu::check(w.expert(x), w.is_stack ? x : -1, parallel))
      return violation;
  return {};
}

Violation run_gpu(const gpu::Device& gpu, const Packed& w) {
  check_kernel(kOp, gpu, runtime::Kernel::check);
  if (!tiles_countable(w.experts, w.first.n, w.first.k))
    fail(kOp, "payload has more than 2^31 tiles, check it expert by expert");
  const Tensor scratch = empty(kOp, {1}, dtypes().int32, w.device);
  gpu::Queue queue(gpu, current_stream(kOp, w.device));
  return gpu::check(queue, stack_of(w), w.experts, w.is_stack,
                    scratch.data<uint32_t>(kOp, "the workspace"));
}

}  // namespace

void Check::run(StableIValue* stack) {
  Arguments arguments(stack);
  const PackedArguments packed = arguments.packed();
  const int64_t version = arguments.integer();
  if (version != kFormatVersion)
    fail(kOp, "meta: this library reads version ", kFormatVersion, ": ", version);
  const Packed w = check_packed(kOp, packed, Experts::kAllowed);
  const gpu::Device* gpu = find_gpu(kOp, w.device);
  if (w.experts == 0) return;
  if (const Violation violation = gpu == nullptr ? run_cpu(w) : run_gpu(*gpu, w))
    fail(kOp, cpu::describe(violation));
}

}  // namespace nf12::torch_ops
