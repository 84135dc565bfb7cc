// nf12::unpack: the exact BF16 weight, [N, K], or [X, N, K] of a stack of experts.
#include "csrc/cpu/cpu.hpp"
#include "csrc/torch/arguments.hpp"
#include "csrc/torch/checks.hpp"
#include "csrc/torch/error.hpp"
#include "csrc/torch/gpu.hpp"
#include "csrc/torch/ops.hpp"
#include "csrc/torch/parallel.hpp"
#include "csrc/unpack/launch.hpp"

namespace nf12::torch_ops {
namespace {

constexpr const char* kOp = Unpack::kName;

void run_cpu(const Packed& w, uint16_t* rows) {
  const cpu::Parallel parallel = torch_parallel();
  for (int64_t x = 0; x < w.experts; ++x)
    cpu::unpack(w.expert(x), rows + x * w.first.n * w.first.k, parallel);
}

void run_gpu(const gpu::Device& gpu, PackedArguments& packed, Packed& w, uint16_t* rows) {
  align_for_gpu(kOp, Experts::kAllowed, packed, w);
  for (const int alignment : {16, 4, 2}) check_kernel(kOp, gpu, gpu::unpack_kernel(gpu, alignment));
  if (!tiles_countable(w.experts, w.first.n, w.first.k))
    fail(kOp, "payload has more than 2^31 tiles, unpack it expert by expert");
  gpu::Queue queue(gpu, current_stream(kOp, w.device));
  gpu::unpack(queue, stack_of(w), w.experts, rows);
}

}  // namespace

void Unpack::run(StableIValue* stack) {
  Arguments arguments(stack);
  PackedArguments packed = arguments.packed();
  Packed w = check_packed(kOp, packed, Experts::kAllowed);
  const gpu::Device* gpu = find_gpu(kOp, w.device);

  const int64_t n = w.first.n;
  const int64_t k = w.first.k;
  Tensor out = w.is_stack ? empty(kOp, {w.experts, n, k}, dtypes().bfloat16, w.device)
                          : empty(kOp, {n, k}, dtypes().bfloat16, w.device);
  auto* rows = out.data<uint16_t>(kOp, "the result");
  if (w.experts > 0) {
    if (gpu != nullptr)
      run_gpu(*gpu, packed, w, rows);
    else
      run_cpu(w, rows);
  }
  stack[0] = to_word(std::move(out));
}

}  // namespace nf12::torch_ops
