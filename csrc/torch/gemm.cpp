// nf12::gemm and gemm.out: y = x W^T + bias for x [..., K], y [..., N].
#include "csrc/torch/gemm.hpp"

#include <array>
#include <vector>

#include "csrc/cpu/cpu.hpp"
#include "csrc/torch/arguments.hpp"
#include "csrc/torch/gpu.hpp"
#include "csrc/torch/kernel_override.hpp"
#include "csrc/torch/ops.hpp"
#include "csrc/torch/parallel.hpp"

namespace nf12::torch_ops {
namespace {

cpu::Level choose_level(int64_t m, int64_t n, int64_t k) {
  if (const auto level = wanted_level()) return *level;
  return cpu::select_level(m, n, k, cpu::highest_level());
}

void run_cpu(const GemmOperands& operands, const Packed& w) {
  const cpu::Level level = choose_level(operands.m, w.first.n, w.first.k);
  const size_t bytes = cpu::gemm_workspace_bytes(operands.m, w.first.n, w.first.k, level);
  const Workspace workspace(bytes, w.device);
  const cpu::GemmArgs args{
      .x = operands.x->data<const uint16_t>(kGemm, "x"),
      .x_row_stride = operands.x_stride,
      .m = operands.m,
      .w = w.first,
      .bias = *operands.bias ? operands.bias->data<const uint16_t>(kGemm, "bias") : nullptr,
      .y = operands.y->data<uint16_t>(kGemm, "out"),
      .y_row_stride = operands.y_stride,
      .workspace = workspace.data(),
  };
  cpu::gemm(args, level, torch_parallel());
}

// Every argument is checked.
void run(const Tensor& x, PackedArguments& packed, Packed& w, const Tensor& bias, const Tensor& y) {
  const gpu::Device* gpu = find_gpu(kGemm, w.device);
  if (x.empty()) return;
  const GemmOperands operands(x, w, bias, y);
  if (gpu != nullptr)
    run_gpu(*gpu, operands, packed, w);
  else
    run_cpu(operands, w);
  operands.finish();
}

// y [..., N], contiguous.
Tensor empty_result(const Tensor& x, const Packed& w) {
  const auto shape = x.sizes();
  constexpr size_t kInline = 4;  // x of any usual rank allocates nothing but y
  if (shape.size() <= kInline) {
    std::array<int64_t, kInline> y_shape;
    std::copy(shape.begin(), shape.end(), y_shape.begin());
    y_shape[shape.size() - 1] = w.first.n;
    return empty(kGemm, {y_shape.data(), shape.size()}, dtypes().bfloat16, w.device);
  }
  std::vector<int64_t> y_shape(shape.begin(), shape.end());
  y_shape.back() = w.first.n;
  return empty(kGemm, y_shape, dtypes().bfloat16, w.device);
}

}  // namespace

Workspace::Workspace(size_t bytes, Device device) {
  if (bytes == 0) return;
  memory_ = empty(kGemm, {static_cast<int64_t>(bytes + kAlignment - 1)}, dtypes().uint8, device);
  const auto address = reinterpret_cast<uintptr_t>(memory_.data(kGemm, "the workspace"));
  data_ = reinterpret_cast<void*>((address + kAlignment - 1) & ~(kAlignment - 1));
}

GemmOperands::GemmOperands(const Tensor& x_given, const Packed& w, const Tensor& bias_given,
                           const Tensor& y_given)
    : x(&x_given), bias(&bias_given), y(&y_given), y_given_(y_given) {
  Rows x_rows = rows_of(x_given);
  if (!x_rows.is_view) {
    x_copy_ = contiguous_copy(kGemm, x_given);
    x = &x_copy_;
    x_rows = rows_of(x_copy_);
  }
  Rows y_rows = rows_of(y_given);
  if (!y_rows.is_view) {
    y_dense_ = empty(kGemm, y_given.sizes(), y_given.dtype(), w.device);
    y = &y_dense_;
    y_rows = rows_of(y_dense_);
  }
  if (bias_given && w.first.n != 1 && bias_given.strides()[0] != 1) {
    bias_copy_ = contiguous_copy(kGemm, bias_given);
    bias = &bias_copy_;
  }
  m = x_rows.rows;
  x_stride = x_rows.stride;
  y_stride = y_rows.stride;
}

void GemmOperands::finish() const {
  if (y_dense_) copy_into(kGemm, y_given_, y_dense_);
}

void Gemm::run(StableIValue* stack) {
  Arguments arguments(stack);
  const Tensor x = arguments.tensor();
  PackedArguments packed = arguments.packed();
  const Tensor bias = arguments.optional_tensor();
  Packed w = check_packed(kGemm, packed, Experts::kRefused);
  check_gemm(kGemm, x, w, bias);

  Tensor y = empty_result(x, w);
  torch_ops::run(x, packed, w, bias, y);
  stack[0] = to_word(std::move(y));
}

void GemmOut::run(StableIValue* stack) {
  Arguments arguments(stack);
  const Tensor x = arguments.tensor();
  PackedArguments packed = arguments.packed();
  const Tensor bias = arguments.optional_tensor();
  const Tensor out = arguments.tensor();
  Packed w = check_packed(kGemm, packed, Experts::kRefused);
  check_gemm(kGemm, x, w, bias);
  check_out(kGemm, out, x, packed, bias);

  torch_ops::run(x, packed, w, bias, out);
}

}  // namespace nf12::torch_ops
