// What nf12::gemm's two ways, CPU (gemm.cpp) and GPU (gemm_gpu.cpp), have in common.
#pragma once
#include <cstddef>
#include <cstdint>

#include "csrc/gpu/gpu.hpp"
#include "csrc/torch/checks.hpp"

namespace nf12::torch_ops {

inline constexpr const char* kGemm = "gemm";

// x [m, K], y [m, N] and bias as rows: what has another layout is copied, and `finish` copies y
// back.
class GemmOperands {
 public:
  GemmOperands(const Tensor& x, const Packed& w, const Tensor& bias, const Tensor& y);
  GemmOperands(const GemmOperands&) = delete;
  void finish() const;

  const Tensor* x;
  const Tensor* bias;  // undefined: none
  const Tensor* y;
  int64_t m;
  int64_t x_stride, y_stride;  // elements

 private:
  const Tensor& y_given_;
  Tensor x_copy_, bias_copy_, y_dense_;
};

// Memory for the kernel's own use, from torch's allocator, which may cache it.
class Workspace {
 public:
  Workspace(size_t bytes, Device device);
  void* data() const { return data_; }

 private:
  static constexpr uintptr_t kAlignment = 64;
  Tensor memory_;
  void* data_ = nullptr;
};

void run_gpu(const gpu::Device& gpu, const GemmOperands& operands, PackedArguments& packed,
             Packed& w);

}  // namespace nf12::torch_ops
