// The GPU driver as a table of functions, filled at run time: libnf12.so links neither of the two.
//
// hip* and cu* functions of one role have one shape; where they differ (arch names, contexts, error
// texts) the functions below hide it. AMD: through the handle of libtorch_hip.so, so that it is the
// libamdhip64 that torch itself uses. NVIDIA: libcuda.so.1.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "csrc/runtime/code_objects.hpp"

namespace nf12::runtime {

enum class Vendor { kAmd, kNvidia };

// CUlaunchConfig with its attributes.
struct LaunchAttribute {
  int id;
  alignas(8) int value[16];
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);

// hipError_t or CUresult; 0 is success in both.
using Status = int;

// What the two drivers number alike.
inline constexpr Status kNotFound = 500;        // hipErrorNotFound, CUDA_ERROR_NOT_FOUND
inline constexpr Status kNoBinaryForGpu = 209;  // hipErrorNoBinaryForGpu, ..._NO_BINARY_FOR_GPU
inline constexpr Status kUnsupportedPtx = 222;  // CUDA: the PTX is newer than the driver
inline constexpr int kCaptureModeRelaxed = 2;

using Module = void*;
using Function = void*;
using Stream = void*;

struct Driver {
  Vendor vendor;

  // Of both vendors; a name is what an error begins with.
  template <typename F>
  struct Entry {
    F* call;
    const char* name;
  };
  Entry<Status(int* value, int attribute, int device)> device_attribute;
  Entry<Status(int* mode)> exchange_capture_mode;
  Entry<Status(Module*, const void* image)> load_module;
  Entry<Status(Function*, Module, const char* name)> find_function;
  Entry<Status(Function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
               unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream, void** arguments,
               void** extra)>
      launch;
  Entry<Status(uintptr_t target, uint32_t value, size_t words, Stream)> fill_words;
  Entry<Status(uintptr_t target, const void* source, size_t bytes, Stream)> copy_to_device;
  Entry<Status(void* target, uintptr_t source, size_t bytes, Stream)> copy_to_host;
  Entry<Status(Stream)> synchronise;

  // AMD only. `properties` is 4 KiB or more (see arch_name).
  Entry<Status(int* device)> get_device;
  Entry<Status(int device)> set_device;
  Entry<Status(void* properties, int device)> device_properties;
  Entry<const char*(Status)> error_text;
  Entry<Status()> take_last_error;

  // NVIDIA only.
  Entry<Status(int* device, int index)> device_of_index;
  Entry<Status(void** context)> current_context;
  Entry<Status(void** context, int device)> retain_primary_context;
  Entry<Status(void* context)> push_context;
  Entry<Status(void** context)> pop_context;
  Entry<Status(Status, const char** text)> store_error_text;
  Entry<Status(Function, int attribute, int value)> set_function_attribute;
  Entry<Status(const LaunchConfig*, Function, void** arguments, void** extra)> launch_with;
  Entry<Status(int* clusters, Function, const LaunchConfig*)> count_clusters;
  Entry<Status(Stream, int* capturing, uint64_t* id, void** graph, void* const** nodes,
               size_t* count)>
      capture_info;
  Entry<Status(void* node, int* type)> node_type;
  // `params` begins with the function; it has less than 128 bytes.
  Entry<Status(void* node, void* params)> kernel_node_params;
  // Arrays: sizes and box of each dimension, strides of all but the first, in bytes.
  Entry<Status(void* map, int type, uint32_t dimensions, void* base, const uint64_t* sizes,
               const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave,
               int swizzle, int promotion, int fill)>
      encode_tensor_map;

  std::span<const CodeObject> stand_ins;  // of a test's driver

  // Throws "hipModuleLaunchKernel: out of memory" unless the call succeeded.
  template <typename F, typename... Arguments>
  void operator()(const Entry<F>& entry, Arguments... arguments) const {
    if (const Status status = entry.call(arguments...); status != 0) [[unlikely]]
      fail(entry.name, status);
  }
  [[noreturn, gnu::cold]] void fail(const char* name, Status status) const;
  // HIP remembers the last failure of any call and torch would find it after its own next launch.
  void forget_failure() const;

  // "gfx1201", "sm_90".
  std::string arch_name(int device) const;
  int multiprocessors(int device) const;
  // Bytes that a launch may give a block beyond the kernel's own; NVIDIA, else 0.
  int shared_bytes(int device) const;
};

// The driver of this process's torch. Throws if torch has no GPU support or a function is missing.
const Driver& driver();

// For the tests: the table from a shared library with libamdhip64's entry points.
Driver open_hip_driver(const char* path);

}  // namespace nf12::runtime
