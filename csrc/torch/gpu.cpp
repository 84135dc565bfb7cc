#include "csrc/torch/gpu.hpp"

#include <dlfcn.h>

#include <atomic>

#include "csrc/torch/error.hpp"

namespace nf12::torch_ops {
namespace {

std::atomic<int> pretended_gpu = -1;
std::atomic<runtime::Stream> pretended_stream = nullptr;
std::atomic<int64_t> pretended_slice_bytes = 0;

bool is_cuda(Device device) {  // of AMD's GPUs as well
  static const int32_t cuda = aoti_torch_device_type_cuda();
  return device.type == cuda;
}

// Not in the CPU build of torch, so it cannot be linked.
using GetStream = AOTITorchError (*)(int32_t device_index, void** stream);
GetStream find_get_stream() {
  for (const char* library : {"libtorch_hip.so", "libtorch_cuda.so"})
    if (void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD))
      return reinterpret_cast<GetStream>(dlsym(handle, "aoti_torch_get_current_cuda_stream"));
  return nullptr;
}

bool is_aligned(const void* p, int64_t stride_bytes) {
  return ((reinterpret_cast<uintptr_t>(p) | static_cast<uintptr_t>(stride_bytes)) & 15) == 0;
}

}  // namespace

const gpu::Device* find_gpu(const char* op, Device device) {
  int index = device.index;
  if (device.is_cpu()) {
    index = pretended_gpu.load(std::memory_order_relaxed);
    if (index < 0) [[likely]]
      return nullptr;
  } else if (!is_cuda(device)) {
    fail(op, device_text(device), " has no kernels in this build, use backend torch");
  }
  const gpu::Device& gpu = gpu::Device::of(index);
  if (!gpu.has_kernels()) fail(op, gpu.arch(), " has no kernels here, use backend torch");
  return &gpu;
}

runtime::Stream current_stream(const char* op, Device device) {
  if (device.is_cpu()) return pretended_stream.load(std::memory_order_relaxed);
  static const GetStream get = find_get_stream();
  void* stream = nullptr;
  if (get == nullptr || get(device.index, &stream) != AOTI_TORCH_SUCCESS)
    fail(op, "torch does not tell the current stream of ", device_text(device));
  return stream;
}

void align_for_gpu(const char* op, Experts experts, PackedArguments& packed, Packed& w) {
  const bool payload = is_aligned(w.first.payload, w.first.payload_stride_bytes) &&
                       is_aligned(nullptr, w.payload_expert_bytes);
  const bool escapes = is_aligned(w.first.escapes, 0);
  if (payload && escapes) [[likely]]
    return;
  if (!payload) packed.payload = contiguous_copy(op, packed.payload);
  if (!escapes) packed.escapes = contiguous_copy(op, packed.escapes);
  w = check_packed(op, packed, experts);
}

void check_kernel(const char* op, const gpu::Device& gpu, runtime::Kernel kernel) {
  if (!gpu.has(kernel)) [[unlikely]]
    fail(op, gpu.arch(), " has no ", runtime::name_of(kernel), " here, use backend torch");
}

int64_t slice_bytes() {
  const int64_t pretended = pretended_slice_bytes.load(std::memory_order_relaxed);
  return pretended > 0 ? pretended : kSliceBytes;
}

void pretend_gpu(int index, runtime::Stream stream, int64_t slice_bytes) {
  pretended_slice_bytes = slice_bytes;
  pretended_stream = stream;
  pretended_gpu = index;
}

}  // namespace nf12::torch_ops
