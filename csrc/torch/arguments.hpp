// An operator's arguments and results on torch's stack of 64-bit words.
//
// The operators are boxed by hand: TORCH_BOX would wrap every tensor in a shared_ptr.
#pragma once
#include <torch/csrc/stable/c/shim.h>

#include <cstdint>

#include "csrc/torch/tensor.hpp"

namespace nf12::torch_ops {

// The six arguments that name a packed weight, in the order of every schema.
struct PackedArguments {
  Tensor payload;
  Tensor index;
  Tensor escapes;
  int64_t out_features;
  int64_t in_features;
  int64_t base;
};

// Reads arguments in the order of the schema. An operator reads all of them before anything can
// fail, since it owns each tensor from the moment it is called.
class Arguments {
 public:
  explicit Arguments(const StableIValue* stack) : next_(stack) {}

  int64_t integer() { return static_cast<int64_t>(*next_++); }
  Tensor tensor() { return Tensor(reinterpret_cast<AtenTensorHandle>(*next_++)); }
  // None is a null word, else the word points at a heap cell that is ours to free.
  Tensor optional_tensor() {
    auto* cell = reinterpret_cast<StableIValue*>(*next_++);
    if (cell == nullptr) return Tensor();
    Tensor value(reinterpret_cast<AtenTensorHandle>(*cell));
    delete cell;
    return value;
  }
  PackedArguments packed() {
    PackedArguments w;
    w.payload = tensor();
    w.index = tensor();
    w.escapes = tensor();
    w.out_features = integer();
    w.in_features = integer();
    w.base = integer();
    return w;
  }

 private:
  const StableIValue* next_;
};

// Hands a result's reference to torch.
inline StableIValue to_word(Tensor tensor) {
  return reinterpret_cast<StableIValue>(tensor.release());
}

}  // namespace nf12::torch_ops
