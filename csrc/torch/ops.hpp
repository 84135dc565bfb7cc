// The operators below the dispatcher, one file each. `run` pops its arguments from the stack in the
// order of its schema (library.cpp) and leaves its results there.
#pragma once
#include <torch/csrc/stable/c/shim.h>

namespace nf12::torch_ops {

struct Pack {
  static constexpr const char* kName = "pack";
  static void run(StableIValue* stack);
};
struct Unpack {
  static constexpr const char* kName = "unpack";
  static void run(StableIValue* stack);
};
struct Gemm {
  static constexpr const char* kName = "gemm";
  static void run(StableIValue* stack);
};
struct GemmOut {
  static constexpr const char* kName = "gemm";
  static void run(StableIValue* stack);
};
struct Check {
  static constexpr const char* kName = "check";
  static void run(StableIValue* stack);
};
struct Gather {
  static constexpr const char* kName = "gather";
  static void run(StableIValue* stack);
};

}  // namespace nf12::torch_ops
