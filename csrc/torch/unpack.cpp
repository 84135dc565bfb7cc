// nf12::unpack: the exact BF16 weight, [N, K], or [X, N, K] of a stack of experts.
#include "csrc/cpu/cpu.hpp"
#include "csrc/torch/arguments.hpp"
#include "csrc/torch/checks.hpp"
#include "csrc/torch/ops.hpp"
#include "csrc/torch/parallel.hpp"

namespace nf12::torch_ops {

void Unpack::run(StableIValue* stack) {
  Arguments arguments(stack);
  const PackedArguments packed = arguments.packed();
  const Packed w = check_packed(kName, packed, Experts::kAllowed);
  check_kernels(kName, w.device);

  const int64_t n = w.first.n;
  const int64_t k = w.first.k;
  Tensor out = w.is_stack ? empty(kName, {w.experts, n, k}, dtypes().bfloat16, w.device)
                          : empty(kName, {n, k}, dtypes().bfloat16, w.device);
  auto* rows = out.data<uint16_t>(kName, "the result");
  const cpu::Parallel parallel = torch_parallel();
  for (int64_t x = 0; x < w.experts; ++x) cpu::unpack(w.expert(x), rows + x * n * k, parallel);
  stack[0] = to_word(std::move(out));
}

}  // namespace nf12::torch_ops
