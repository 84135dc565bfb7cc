// A torch tensor as the operators see it, over the C functions of the stable ABI.
//
// torch's own C++ wrapper costs a shared_ptr a tensor and 1.5 us a call; this one is a pointer.
#pragma once
#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

namespace nf12::torch_ops {

// Element types the operators know. The numbers are torch's, asked for once.
struct Dtypes {
  int32_t bfloat16, uint8, int32, int64;
};
const Dtypes& dtypes();
std::string dtype_text(int32_t dtype);

struct Device {
  int32_t type;
  int32_t index;  // -1 on a CPU
  bool operator==(const Device&) const = default;
  bool is_cpu() const;
};
std::string device_text(Device device);

// Owns one reference.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(AtenTensorHandle handle) : handle_(handle) {}
  Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  explicit operator bool() const { return handle_ != nullptr; }
  AtenTensorHandle get() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

  std::span<const int64_t> sizes() const;
  std::span<const int64_t> strides() const;
  int32_t dtype() const;
  Device device() const;
  bool empty() const;       // no elements
  bool is_defined() const;  // None given for a tensor arrives as an undefined one

  // First element; null without elements. Fails if the storage is smaller than shape and strides
  // reach, as after storage.resize_(0): nothing in torch stops such a tensor on its way here.
  void* data(const char* op, const char* name) const;
  template <typename T>
  T* data(const char* op, const char* name) const {
    return static_cast<T*>(data(op, name));
  }

 private:
  AtenTensorHandle handle_ = nullptr;
};

// What torch says of its last failure, from torch 2.13 on; before, it prints it to stderr only.
std::string torch_reason();

// Number of elements, or -1 if it, or twice it in bytes, exceeds an int64.
int64_t checked_numel(std::span<const int64_t> shape);

// A contiguous tensor of undefined content.
Tensor empty(const char* op, std::span<const int64_t> shape, int32_t dtype, Device device);
inline Tensor empty(const char* op, std::initializer_list<int64_t> shape, int32_t dtype,
                    Device device) {
  return empty(op, std::span(shape.begin(), shape.size()), dtype, device);
}
// A contiguous copy.
Tensor contiguous_copy(const char* op, const Tensor& source);
void copy_into(const char* op, const Tensor& target, const Tensor& source);

}  // namespace nf12::torch_ops
