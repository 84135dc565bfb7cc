#include "csrc/torch/tensor.hpp"

#include <dlfcn.h>

#include <array>
#include <limits>
#include <vector>

#include "csrc/torch/error.hpp"

namespace nf12::torch_ops {
namespace {

void check_call(AOTITorchError code, const char* op, const char* name, const char* what) {
  if (code != AOTI_TORCH_SUCCESS) [[unlikely]]
    fail(op, name, what, torch_reason());
}

// Elements from the first to the last one reached, inclusive; -1 if that exceeds an int64.
int64_t extent(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    int64_t step;
    if (__builtin_mul_overflow(sizes[i] - 1, strides[i], &step) ||
        __builtin_add_overflow(last, step, &last))
      return -1;
  }
  return last == std::numeric_limits<int64_t>::max() ? -1 : last + 1;
}

}  // namespace

std::string torch_reason() {
  using What = const char* (*)();
  static const auto what =
      reinterpret_cast<What>(dlsym(RTLD_DEFAULT, "torch_exception_get_what_without_backtrace"));
  const char* text = what == nullptr ? nullptr : what();
  return text == nullptr ? "" : std::string(": ") + text;
}

const Dtypes& dtypes() {
  static const Dtypes known{aoti_torch_dtype_bfloat16(), aoti_torch_dtype_uint8(),
                            aoti_torch_dtype_int32(), aoti_torch_dtype_int64()};
  return known;
}

std::string dtype_text(int32_t dtype) {
  const std::pair<int32_t, const char*> names[] = {
      {aoti_torch_dtype_bfloat16(), "bfloat16"},
      {aoti_torch_dtype_float16(), "float16"},
      {aoti_torch_dtype_float32(), "float32"},
      {aoti_torch_dtype_float64(), "float64"},
      {aoti_torch_dtype_float8_e4m3fn(), "float8_e4m3fn"},
      {aoti_torch_dtype_float8_e4m3fnuz(), "float8_e4m3fnuz"},
      {aoti_torch_dtype_float8_e5m2(), "float8_e5m2"},
      {aoti_torch_dtype_float8_e5m2fnuz(), "float8_e5m2fnuz"},
      {torch_dtype_float8_e8m0fnu(), "float8_e8m0fnu"},
      {torch_dtype_float4_e2m1fn_x2(), "float4_e2m1fn_x2"},
      {aoti_torch_dtype_uint8(), "uint8"},
      {aoti_torch_dtype_uint16(), "uint16"},
      {aoti_torch_dtype_uint32(), "uint32"},
      {aoti_torch_dtype_uint64(), "uint64"},
      {aoti_torch_dtype_int8(), "int8"},
      {aoti_torch_dtype_int16(), "int16"},
      {aoti_torch_dtype_int32(), "int32"},
      {aoti_torch_dtype_int64(), "int64"},
      {aoti_torch_dtype_bool(), "bool"},
      {aoti_torch_dtype_complex32(), "complex32"},
      {aoti_torch_dtype_complex64(), "complex64"},
      {aoti_torch_dtype_complex128(), "complex128"},
  };
  for (const auto& [number, name] : names)
    if (number == dtype) return name;
  return "number " + std::to_string(dtype);
}

bool Device::is_cpu() const {
  static const int32_t cpu = aoti_torch_device_type_cpu();
  return type == cpu;
}

std::string device_text(Device device) {
  const std::pair<int32_t, const char*> names[] = {
      {aoti_torch_device_type_cpu(), "cpu"},
      {aoti_torch_device_type_cuda(), "cuda"},
      {aoti_torch_device_type_meta(), "meta"},
      {aoti_torch_device_type_xpu(), "xpu"},
      {aoti_torch_device_type_mps(), "mps"},
      {aoti_torch_device_type_privateuse1(), "privateuseone"},
  };
  std::string text = "device type " + std::to_string(device.type);
  for (const auto& [number, name] : names)
    if (number == device.type) text = name;
  return device.index < 0 ? text : text + ":" + std::to_string(device.index);
}

std::span<const int64_t> Tensor::sizes() const {
  int64_t dim = 0;
  int64_t* sizes = nullptr;
  aoti_torch_get_dim(handle_, &dim);
  aoti_torch_get_sizes(handle_, &sizes);
  return {sizes, static_cast<size_t>(dim)};
}

std::span<const int64_t> Tensor::strides() const {
  int64_t dim = 0;
  int64_t* strides = nullptr;
  aoti_torch_get_dim(handle_, &dim);
  aoti_torch_get_strides(handle_, &strides);
  return {strides, static_cast<size_t>(dim)};
}

int32_t Tensor::dtype() const {
  int32_t dtype = -1;
  aoti_torch_get_dtype(handle_, &dtype);
  return dtype;
}

Device Tensor::device() const {
  Device device{-1, -1};
  aoti_torch_get_device_type(handle_, &device.type);
  aoti_torch_get_device_index(handle_, &device.index);
  return device;
}

bool Tensor::empty() const {
  for (const int64_t size : sizes())
    if (size == 0) return true;
  return false;
}

bool Tensor::is_defined() const {
  bool defined = false;
  aoti_torch_is_defined(handle_, &defined);
  return defined;
}

void* Tensor::data(const char* op, const char* name) const {
  if (empty()) return nullptr;
  const auto shape = sizes();
  int64_t storage_bytes = 0;
  int64_t offset = 0;
  check_call(aoti_torch_get_storage_size(handle_, &storage_bytes), op, name, " has no storage");
  check_call(aoti_torch_get_storage_offset(handle_, &offset), op, name, " has no storage");
  const int64_t reach = extent(shape, strides());
  const auto element_bytes = static_cast<int64_t>(aoti_torch_dtype_element_size(dtype()));
  int64_t needed_bytes;
  if (reach < 0 || __builtin_add_overflow(reach, offset, &needed_bytes) ||
      __builtin_mul_overflow(needed_bytes, element_bytes, &needed_bytes) ||
      needed_bytes > storage_bytes) [[unlikely]]
    fail(op, name, " is ", shape_text(shape), " with strides ", shape_text(strides()),
         " and offset ", offset, ", its storage has ", storage_bytes, " bytes");
  void* data = nullptr;
  check_call(aoti_torch_get_data_ptr(handle_, &data), op, name, " has no data");
  return data;
}

int64_t checked_numel(std::span<const int64_t> shape) {
  int64_t numel = 1;
  for (const int64_t size : shape)
    if (size == 0) return 0;
  for (const int64_t size : shape)
    if (__builtin_mul_overflow(numel, size, &numel)) return -1;
  return numel > std::numeric_limits<int64_t>::max() / 2 ? -1 : numel;
}

Tensor empty(const char* op, std::span<const int64_t> shape, int32_t dtype, Device device) {
  if (checked_numel(shape) < 0) fail(op, "a result of shape ", shape_text(shape), " is too large");
  constexpr size_t kInline = 8;
  std::array<int64_t, kInline> few;
  std::vector<int64_t> many;
  int64_t* strides = few.data();
  if (shape.size() > kInline) {
    many.resize(shape.size());
    strides = many.data();
  }
  uint64_t stride = 1;  // wraps, unused, in a shape with a zero
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(shape[i] > 1 ? shape[i] : 1);
  }
  AtenTensorHandle handle = nullptr;
  const AOTITorchError code =
      aoti_torch_empty_strided(static_cast<int64_t>(shape.size()), shape.data(), strides, dtype,
                               device.type, device.index < 0 ? 0 : device.index, &handle);
  if (code != AOTI_TORCH_SUCCESS) [[unlikely]]
    fail(op, "cannot allocate memory for ", dtype_text(dtype), " ", shape_text(shape),
         torch_reason());
  return Tensor(handle);
}

Tensor contiguous_copy(const char* op, const Tensor& source) {
  Tensor copy = empty(op, source.sizes(), source.dtype(), source.device());
  copy_into(op, copy, source);
  return copy;
}

void copy_into(const char* op, const Tensor& target, const Tensor& source) {
  check_call(aoti_torch_copy_(target.get(), source.get(), /*non_blocking=*/0), op, "a tensor",
             " cannot be copied");
}

}  // namespace nf12::torch_ops
