// From a torch tensor's device to the GPU backend: which GPU, its kernels, torch's current stream.
#pragma once
#include "csrc/gpu/gpu.hpp"
#include "csrc/torch/checks.hpp"

namespace nf12::torch_ops {

// The GPU that holds an operator's tensors; null for a CPU's. Fails for one without kernels.
const gpu::Device* find_gpu(const char* op, Device device);

// The stream that torch works on, of `device` and this thread.
runtime::Stream current_stream(const char* op, Device device);

// GPU kernels load payload and side table by 16 bytes: what does not lie at such addresses is
// copied. `packed` keeps the copies; `w` is the checked form of it.
void align_for_gpu(const char* op, Experts experts, PackedArguments& packed, Packed& w);

// A kernel that the operator cannot do without.
void check_kernel(const char* op, const gpu::Device& gpu, runtime::Kernel kernel);

inline PackedStack stack_of(const Packed& w) {
  return {w.first, w.payload_expert_bytes, w.index_expert_words};
}

// Of a slice of the buffered path.
int64_t slice_bytes();

// For the tests: CPU tensors are taken for memory of GPU `index` (-1: no longer), `stream` for its
// current one, and slices have `slice_bytes` (0: as ever).
void pretend_gpu(int index, runtime::Stream stream, int64_t slice_bytes);

}  // namespace nf12::torch_ops
