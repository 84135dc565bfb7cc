// nf12::gemm on a GPU: one launch, a split one and its sum, or slices of the weight through torch's
// own matmul.
#include <torch/headeronly/version.h>

#include <array>

#include "csrc/gpu/gemm_table.hpp"
#include "csrc/torch/error.hpp"
#include "csrc/torch/gemm.hpp"
#include "csrc/torch/gpu.hpp"
#include "csrc/torch/kernel_override.hpp"
#include "csrc/unpack/launch.hpp"

namespace nf12::torch_ops {
namespace {

GemmChoice choose(const gpu::Device& gpu, const GemmProblem& problem) {
  const GemmTraits& traits = gpu::gemm_traits(gpu);
  const auto wanted = wanted_path();
  const GemmChoice choice = wanted ? choice_of(*wanted, traits, problem)
                                   : select_gemm(gpu::gemm_table(gpu), traits, problem);
  if (choice) [[likely]]
    return choice;
  if (wanted)
    fail(kGemm, "kernel ", name_of(*wanted), " ", choice.refusal, ": ", gpu.arch(), ", m ",
         problem.m, ", n ", problem.weight.n, ", k ", problem.weight.k);
  fail(kGemm, gpu.arch(), " has no gemm kernels here, use backend torch");
}

// A view from element `offset` of `base` on; it takes no part in autograd.
Tensor view_of(const Tensor& base, int64_t offset, std::initializer_list<int64_t> shape,
               std::initializer_list<int64_t> strides) {
  AtenTensorHandle view = nullptr;
  if (aoti_torch__reinterpret_tensor(base.get(), static_cast<int64_t>(shape.size()), shape.begin(),
                                     strides.begin(), offset, &view) != AOTI_TORCH_SUCCESS)
    fail(kGemm, "torch cannot make a view");
  return Tensor(view);
}

// out = x w^T + bias, rounded once. Its arguments are torch's from the call on.
void torch_linear(Tensor x, Tensor w, Tensor bias, const Tensor& out) {
  AtenTensorHandle out_reference = nullptr;
  if (aoti_torch_new_tensor_handle(out.get(), &out_reference) != AOTI_TORCH_SUCCESS)
    fail(kGemm, "torch cannot share a tensor");
  StableIValue* some_bias = nullptr;
  if (bias) some_bias = new StableIValue(to_word(std::move(bias)));
  std::array<StableIValue, 4> stack = {to_word(std::move(x)), to_word(std::move(w)),
                                       reinterpret_cast<StableIValue>(some_bias),
                                       reinterpret_cast<StableIValue>(out_reference)};
  if (torch_call_dispatcher("aten::linear", "out", stack.data(), TORCH_ABI_VERSION) !=
      AOTI_TORCH_SUCCESS)
    fail(kGemm, "torch's matmul failed", torch_reason());
  const Tensor same_as_out(reinterpret_cast<AtenTensorHandle>(stack[0]));
}

// The weight in slices of tile rows, one after the other through the same memory. A bias is added
// before the only rounding as long as the result is contiguous: into a wider y, torch rounds the
// product first (H200, torch 2.11: 7 % of the outputs were another BF16).
void run_buffered(gpu::Queue& queue, const GemmOperands& operands, const Packed& w) {
  const int64_t m = operands.m, n = w.first.n, k = w.first.k;
  const int64_t slice_tiles = slice_tile_rows_of(n, k, slice_bytes());
  const Tensor buffer =
      empty(kGemm, {std::min(slice_tiles * kTileRows, n), k}, dtypes().bfloat16, w.device);
  auto* rows = buffer.data<uint16_t>(kGemm, "the workspace");
  // x likewise, if its rows are not aligned.
  const bool x_is_aligned =
      rows_are_aligned(operands.x->data<const uint16_t>(kGemm, "x"), operands.x_stride, m);
  Tensor x = view_of(*operands.x, 0, {m, k}, {operands.x_stride, 1});
  if (*operands.bias && !x_is_aligned) {
    Tensor copy = empty(kGemm, {m, k}, dtypes().bfloat16, w.device);
    copy_into(kGemm, copy, x);
    x = std::move(copy);
  }
  const int64_t x_stride = *operands.bias && !x_is_aligned ? k : operands.x_stride;
  const bool through_temporary = *operands.bias && operands.y_stride != buffer.sizes()[0];
  const Tensor temporary = through_temporary
                               ? empty(kGemm, {m, buffer.sizes()[0]}, dtypes().bfloat16, w.device)
                               : Tensor();
  for (int64_t first = 0; first < tile_rows(n); first += slice_tiles) {
    const PackedView slice = slice_tile_rows(w.first, first, slice_tiles);
    gpu::unpack(queue, {slice, 0, 0}, 1, rows);
    const int64_t row = first * kTileRows;
    const Tensor y = view_of(*operands.y, row, {m, slice.n}, {operands.y_stride, 1});
    const Tensor result = temporary ? view_of(temporary, 0, {m, slice.n}, {slice.n, 1}) : Tensor();
    torch_linear(view_of(x, 0, {m, k}, {x_stride, 1}), view_of(buffer, 0, {slice.n, k}, {k, 1}),
                 *operands.bias ? view_of(*operands.bias, row, {slice.n}, {1}) : Tensor(),
                 result ? result : y);
    if (result) copy_into(kGemm, y, result);
  }
}

}  // namespace

void run_gpu(const gpu::Device& gpu, const GemmOperands& operands, PackedArguments& packed,
             Packed& w) {
  align_for_gpu(kGemm, Experts::kRefused, packed, w);
  const auto* x = operands.x->data<const uint16_t>(kGemm, "x");
  auto* y = operands.y->data<uint16_t>(kGemm, "out");
  const GemmChoice choice =
      choose(gpu, {.weight = w.first,
                   .m = operands.m,
                   .x_stride = operands.x_stride,
                   .bias = static_cast<bool>(*operands.bias),
                   .x_is_aligned = rows_are_aligned(x, operands.x_stride, operands.m),
                   .y_is_aligned = rows_are_aligned(y, operands.y_stride, operands.m)});
  gpu::Queue queue(gpu, current_stream(kGemm, w.device));
  if (choice.path == GemmPath::kBuffered) return run_buffered(queue, operands, w);
  const gpu::GemmArgs args{
      .x = x,
      .x_row_stride = operands.x_stride,
      .m = operands.m,
      .w = w.first,
      .bias = *operands.bias ? operands.bias->data<const uint16_t>(kGemm, "bias") : nullptr,
      .y = y,
      .y_row_stride = operands.y_stride,
  };
  const gpu::GemmLaunch launch = gpu::plan_gemm(args, choice, gpu::gemm_traits(gpu));
  const Workspace workspace(launch.workspace_bytes, w.device);
  gpu::gemm(queue, launch, workspace.data());
}

}  // namespace nf12::torch_ops
