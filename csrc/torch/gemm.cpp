// nf12::gemm and gemm.out: y = x W^T + bias for x [..., K], y [..., N].
#include <array>
#include <vector>

#include "csrc/cpu/cpu.hpp"
#include "csrc/torch/arguments.hpp"
#include "csrc/torch/checks.hpp"
#include "csrc/torch/kernel_override.hpp"
#include "csrc/torch/ops.hpp"
#include "csrc/torch/parallel.hpp"

namespace nf12::torch_ops {
namespace {

constexpr const char* kOp = "gemm";

// Memory for the kernel's own use, from torch's allocator, which may cache it.
class Workspace {
 public:
  Workspace(size_t bytes, Device device) {
    if (bytes == 0) return;
    memory_ = empty(kOp, {static_cast<int64_t>(bytes + kAlignment - 1)}, dtypes().uint8, device);
    const auto address = reinterpret_cast<uintptr_t>(memory_.data(kOp, "the workspace"));
    data_ = reinterpret_cast<void*>((address + kAlignment - 1) & ~(kAlignment - 1));
  }
  void* data() const { return data_; }

 private:
  static constexpr uintptr_t kAlignment = 64;
  Tensor memory_;
  void* data_ = nullptr;
};

cpu::Level choose_level(int64_t m, int64_t n, int64_t k) {
  if (kernel_override) return *kernel_override;
  if (const auto forced = cpu::forced_level()) return *forced;
  return cpu::select_level(m, n, k, cpu::highest_level());
}

// Every argument is checked. x, bias and y are copied only if their layout is not one of rows.
void run_cpu(const Tensor& x, const Packed& w, const Tensor& bias, const Tensor& y) {
  Rows x_rows = rows_of(x);
  if (x_rows.rows == 0) return;
  const Tensor x_copy = x_rows.is_view ? Tensor() : contiguous_copy(kOp, x);
  if (x_copy) x_rows = rows_of(x_copy);
  Rows y_rows = rows_of(y);
  Tensor y_dense = y_rows.is_view ? Tensor() : empty(kOp, y.sizes(), y.dtype(), w.device);
  if (y_dense) y_rows = rows_of(y_dense);
  const bool bias_is_row = !bias || w.first.n == 1 || bias.strides()[0] == 1;
  const Tensor bias_copy = bias_is_row ? Tensor() : contiguous_copy(kOp, bias);

  const int64_t m = x_rows.rows;
  const cpu::Level level = choose_level(m, w.first.n, w.first.k);
  const Workspace workspace(cpu::gemm_workspace_bytes(m, w.first.n, w.first.k, level), w.device);
  const cpu::GemmArgs args{
      .x = (x_copy ? x_copy : x).data<const uint16_t>(kOp, "x"),
      .x_row_stride = x_rows.stride,
      .m = m,
      .w = w.first,
      .bias = bias ? (bias_copy ? bias_copy : bias).data<const uint16_t>(kOp, "bias") : nullptr,
      .y = (y_dense ? y_dense : y).data<uint16_t>(kOp, "out"),
      .y_row_stride = y_rows.stride,
      .workspace = workspace.data(),
  };
  cpu::gemm(args, level, torch_parallel());
  if (y_dense) copy_into(kOp, y, y_dense);
}

// y [..., N], contiguous.
Tensor empty_result(const Tensor& x, const Packed& w) {
  const auto shape = x.sizes();
  constexpr size_t kInline = 4;  // x of any usual rank allocates nothing but y
  if (shape.size() <= kInline) {
    std::array<int64_t, kInline> y_shape;
    std::copy(shape.begin(), shape.end(), y_shape.begin());
    y_shape[shape.size() - 1] = w.first.n;
    return empty(kOp, {y_shape.data(), shape.size()}, dtypes().bfloat16, w.device);
  }
  std::vector<int64_t> y_shape(shape.begin(), shape.end());
  y_shape.back() = w.first.n;
  return empty(kOp, y_shape, dtypes().bfloat16, w.device);
}

}  // namespace

void Gemm::run(StableIValue* stack) {
  Arguments arguments(stack);
  const Tensor x = arguments.tensor();
  const PackedArguments packed = arguments.packed();
  const Tensor bias = arguments.optional_tensor();
  const Packed w = check_packed(kOp, packed, Experts::kRefused);
  check_gemm(kOp, x, w, bias);
  check_kernels(kOp, w.device);

  Tensor y = empty_result(x, w);
  run_cpu(x, w, bias, y);
  stack[0] = to_word(std::move(y));
}

void GemmOut::run(StableIValue* stack) {
  Arguments arguments(stack);
  const Tensor x = arguments.tensor();
  const PackedArguments packed = arguments.packed();
  const Tensor bias = arguments.optional_tensor();
  const Tensor out = arguments.tensor();
  const Packed w = check_packed(kOp, packed, Experts::kRefused);
  check_gemm(kOp, x, w, bias);
  check_out(kOp, out, x, packed, bias);
  check_kernels(kOp, w.device);

  run_cpu(x, w, bias, out);
}

}  // namespace nf12::torch_ops
