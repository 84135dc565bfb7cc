// A stand-in for libamdhip64: the entry points that csrc/runtime/driver.cpp asks for, over devices
// that a test describes. A launch runs at once, in the host model of that very kernel, on nothing
// but the bytes of its argument.
//
// It refuses what the real one refuses (code for another GPU, a function on another device's
// stream, a module in a captured thread) and what it lets pass silently (a block size that the
// kernel was not compiled for). Copies to the host happen when the stream is waited for.
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <sstream>
#include <utility>

#include "csrc/runtime/code_objects.hpp"
#include "tests/standin/code_object.hpp"
#include "tests/standin/control.h"
#include "tests/standin/kernels.hpp"

namespace nf12::standin {
namespace {

enum Status : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kInvalidConfiguration = 9,
  kInvalidDevice = 101,
  kNoBinaryForGpu = 209,
  kInvalidHandle = 400,
  kNotFound = 500,
  kLaunchFailure = 719,
  kCaptureUnsupported = 900,
};

constexpr int kRelaxed = 2;
constexpr int kMultiprocessorCount = 63;
constexpr size_t kArchNameOffset = 1160;  // of hipDeviceProp_tR0600

struct Gpu {
  std::string arch;
  int multiprocessors;
};
struct Stream {
  int device;
};
struct Module {
  int device;
  CodeObject object;
};
struct Function {
  int device;
  const Kernel* kernel;
  Descriptor descriptor;
};
struct Failure {
  int skip;
  int status;
  std::string text;
};
struct PendingCopy {
  void* target;
  const void* source;
  size_t bytes;
};

struct State {
  std::mutex mutex;
  std::vector<Gpu> gpus;
  std::deque<Stream> streams;
  std::deque<Module> modules;
  std::deque<Function> functions;
  std::map<std::string, std::vector<Failure>> failures;
  std::map<void*, std::vector<PendingCopy>> pending;  // by stream
  std::deque<std::string> calls;
};

State& state() {
  static auto* state = new State;
  return *state;
}

// Of a thread, as in HIP.
thread_local int current_device = 0;
thread_local int capture_mode = 0;
thread_local bool capturing = false;
thread_local int last_error = kSuccess;
thread_local std::string last_text;

int refuse(int status, std::string text) {
  last_error = status;
  last_text = std::move(text);
  return status;
}

// A call as the log shows it: {"call": "hipSetDevice", "device": 1}.
class Call {
 public:
  explicit Call(const char* name) : name_(name) { text_ << "{\"call\": \"" << name << '"'; }
  ~Call() { state().calls.push_back(text_.str() + "}"); }

  template <typename T>
  Call& with(const char* key, const T& value) {
    text_ << ", \"" << key << "\": " << value;
    return *this;
  }
  Call& with_text(const char* key, const std::string& value) {
    return with(key, '"' + value + '"');
  }
  // The status that the test wants of this call, if any.
  int wanted_failure() {
    for (Failure& failure : state().failures[name_])
      if (failure.skip-- == 0) return refuse(failure.status, failure.text);
    return kSuccess;
  }

 private:
  std::lock_guard<std::mutex> lock_{state().mutex};
  const char* name_;
  std::ostringstream text_;
};

bool is_device(int device) { return device >= 0 && device < static_cast<int>(state().gpus.size()); }
int device_of(const void* stream) {
  return stream == nullptr ? current_device : static_cast<const Stream*>(stream)->device;
}

const Kernel* find_kernel(const std::string& name) {
  static const auto* kernels = [] {
    auto* all = new std::map<std::string, Kernel>;
    for (const auto& list : {fused_kernels(), matrix_kernels(), whole_weight_kernels()})
      for (const Kernel& kernel : list) all->emplace(kernel.name, kernel);
    return all;
  }();
  const auto found = kernels->find(name);
  return found == kernels->end() ? nullptr : &found->second;
}

std::string hex(const void* data, size_t bytes) {
  std::ostringstream text;
  text << std::hex;
  for (size_t i = 0; i < bytes; ++i) {
    const int byte = static_cast<const unsigned char*>(data)[i];
    text << byte / 16 << byte % 16;
  }
  return text.str();
}

int run(const Function& function, unsigned grid_x, unsigned grid_y, const void* argument) {
  const Kernel& kernel = *function.kernel;
  // On a copy: the caller's is gone when a real launch runs.
  const auto copy = std::make_unique<uint64_t[]>((kernel.argument_bytes + 7) / 8);
  std::memcpy(copy.get(), argument, kernel.argument_bytes);
  try {
    arch::host::run({kernel.name, static_cast<int>(grid_x), static_cast<int>(grid_y),
                     kernel.threads / 32, /*seed=*/1, kernel.buffers(copy.get())},
                    [&] { kernel.lane(copy.get()); });
  } catch (const std::exception& report) {
    return refuse(kLaunchFailure, report.what());
  }
  return kSuccess;
}

}  // namespace
}  // namespace nf12::standin

using namespace nf12::standin;

#define STANDIN extern "C" __attribute__((visibility("default")))

// ---- devices ----

STANDIN int hipGetDevice(int* device) {
  Call call("hipGetDevice");
  if (const int status = call.wanted_failure()) return status;
  *device = current_device;
  return kSuccess;
}

STANDIN int hipSetDevice(int device) {
  Call call("hipSetDevice");
  call.with("device", device);
  if (const int status = call.wanted_failure()) return status;
  if (!is_device(device)) return refuse(kInvalidDevice, "invalid device ordinal");
  current_device = device;
  return kSuccess;
}

STANDIN int hipDeviceGetAttribute(int* value, int attribute, int device) {
  Call call("hipDeviceGetAttribute");
  call.with("attribute", attribute).with("device", device);
  if (const int status = call.wanted_failure()) return status;
  if (!is_device(device)) return refuse(kInvalidDevice, "invalid device ordinal");
  if (attribute != kMultiprocessorCount) return refuse(kInvalidValue, "invalid argument");
  *value = state().gpus[device].multiprocessors;
  return kSuccess;
}

STANDIN int hipGetDevicePropertiesR0600(void* properties, int device) {
  Call call("hipGetDevicePropertiesR0600");
  call.with("device", device);
  if (const int status = call.wanted_failure()) return status;
  if (!is_device(device)) return refuse(kInvalidDevice, "invalid device ordinal");
  std::strcpy(static_cast<char*>(properties), "AMD Radeon stand-in");
  std::strcpy(static_cast<char*>(properties) + kArchNameOffset, state().gpus[device].arch.c_str());
  return kSuccess;
}

// ---- modules ----

STANDIN int hipThreadExchangeStreamCaptureMode(int* mode) {
  Call call("hipThreadExchangeStreamCaptureMode");
  call.with("mode", *mode);
  if (const int status = call.wanted_failure()) return status;
  std::swap(*mode, capture_mode);
  return kSuccess;
}

STANDIN int hipModuleLoadData(void** module, const void* image) {
  Call call("hipModuleLoadData");
  const CodeObject object(image);
  call.with("device", current_device).with_text("arch", object.arch());
  call.with("is_text", object.is_text());
  if (const int status = call.wanted_failure()) return status;
  if (capturing && capture_mode != kRelaxed)
    return refuse(kCaptureUnsupported, "operation not permitted when stream is capturing");
  if (!is_device(current_device)) return refuse(kInvalidDevice, "invalid device ordinal");
  const std::string& arch = state().gpus[current_device].arch;
  if (object.arch() != arch.substr(0, arch.find(':')))
    return refuse(kNoBinaryForGpu, "no kernel image is available for execution on the device");
  *module = &state().modules.emplace_back(Module{current_device, object});
  return kSuccess;
}

STANDIN int hipModuleGetFunction(void** function, void* module, const char* name) {
  Call call("hipModuleGetFunction");
  call.with_text("kernel", name);
  if (const int status = call.wanted_failure()) return status;
  const auto& from = *static_cast<Module*>(module);
  const auto descriptor = from.object.find(name);
  const Kernel* kernel = find_kernel(name);
  if (!descriptor || kernel == nullptr) return refuse(kNotFound, "named symbol not found");
  if (!from.object.is_text() && descriptor->argument_bytes < kernel->argument_bytes)
    return refuse(kInvalidValue, std::string(name) + " was compiled for a smaller argument");
  *function = &state().functions.emplace_back(Function{from.device, kernel, *descriptor});
  return kSuccess;
}

STANDIN int hipModuleLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                  unsigned block_x, unsigned block_y, unsigned block_z,
                                  unsigned shared_bytes, void* stream, void** arguments,
                                  void** extra) {
  Call call("hipModuleLaunchKernel");
  const auto& f = *static_cast<Function*>(function);
  call.with_text("kernel", f.kernel->name).with("device", device_of(stream));
  call.with("stream", reinterpret_cast<uintptr_t>(stream));
  call.with("grid_x", grid_x).with("grid_y", grid_y).with("threads", block_x);
  call.with("dynamic_shared_bytes", shared_bytes);
  call.with("shared_bytes", f.descriptor.shared_bytes);
  if (arguments == nullptr || extra != nullptr) return refuse(kInvalidValue, "invalid argument");
  call.with_text("argument", hex(arguments[0], f.kernel->argument_bytes));
  if (const int status = call.wanted_failure()) return status;
  if (f.device != device_of(stream)) return refuse(kInvalidHandle, "invalid resource handle");
  if (grid_x == 0 || grid_y == 0 || grid_z != 1 || grid_y > 65535 || block_y != 1 || block_z != 1 ||
      uint64_t{grid_x} * block_x > UINT32_MAX || static_cast<int>(block_x) != f.kernel->threads)
    return refuse(kInvalidConfiguration, "invalid configuration argument");
  return run(f, grid_x, grid_y, arguments[0]);
}

// ---- memory and streams ----

STANDIN int hipMemsetD32Async(void* target, int value, size_t count, void* stream) {
  Call call("hipMemsetD32Async");
  call.with("count", count).with("device", device_of(stream));
  call.with("stream", reinterpret_cast<uintptr_t>(stream));
  if (const int status = call.wanted_failure()) return status;
  for (size_t i = 0; i < count; ++i) std::memcpy(static_cast<char*>(target) + 4 * i, &value, 4);
  return kSuccess;
}

STANDIN int hipMemcpyHtoDAsync(void* target, const void* source, size_t bytes, void* stream) {
  Call call("hipMemcpyHtoDAsync");
  call.with("bytes", bytes).with("device", device_of(stream));
  call.with("stream", reinterpret_cast<uintptr_t>(stream));
  if (const int status = call.wanted_failure()) return status;
  std::memcpy(target, source, bytes);
  return kSuccess;
}

STANDIN int hipMemcpyDtoHAsync(void* target, void* source, size_t bytes, void* stream) {
  Call call("hipMemcpyDtoHAsync");
  call.with("bytes", bytes).with("device", device_of(stream));
  call.with("stream", reinterpret_cast<uintptr_t>(stream));
  if (const int status = call.wanted_failure()) return status;
  state().pending[stream].push_back({target, source, bytes});
  return kSuccess;
}

STANDIN int hipStreamSynchronize(void* stream) {
  Call call("hipStreamSynchronize");
  call.with("stream", reinterpret_cast<uintptr_t>(stream));
  const auto copies = std::exchange(state().pending[stream], {});
  if (const int status = call.wanted_failure()) return status;
  for (const PendingCopy& copy : copies) std::memcpy(copy.target, copy.source, copy.bytes);
  return kSuccess;
}

// ---- errors ----

STANDIN const char* hipGetErrorString(int status) {
  if (status == last_error && !last_text.empty()) return last_text.c_str();
  return status == kSuccess ? "no error" : "unrecognized error code";
}

STANDIN int hipGetLastError() { return std::exchange(last_error, kSuccess); }

// ---- what a build without GPU targets gets ----

STANDIN const nf12::runtime::CodeObject* nf12_standin_code_objects(size_t* count) {
  static const auto* all = [] {
    static std::deque<std::string> texts;
    auto* objects = new std::vector<nf12::runtime::CodeObject>;
    for (const char* arch : {"gfx1200", "gfx1201"})
      for (const char* unit :
           {"gemm_fused", "gemm_matrix", "gemm_combine", "unpack", "gather", "pack", "check"}) {
        const std::string& text =
            texts.emplace_back(std::string(kTextHeader) + arch + "\n" + unit + "\n");
        objects->push_back({arch, unit, std::as_bytes(std::span(text))});
      }
    return objects;
  }();
  *count = all->size();
  return all->data();
}

// ---- control.h ----

STANDIN void standin_reset() {
  const std::lock_guard lock(state().mutex);
  state().gpus.clear();
  state().streams.clear();
  state().failures.clear();
  state().pending.clear();
  state().calls.clear();
  current_device = 0;
  capture_mode = 0;
  capturing = false;
  last_error = kSuccess;
}

STANDIN void standin_add_device(const char* arch, int multiprocessors) {
  const std::lock_guard lock(state().mutex);
  state().gpus.push_back({arch, multiprocessors});
}

STANDIN void* standin_stream(int device) {
  const std::lock_guard lock(state().mutex);
  return &state().streams.emplace_back(Stream{device});
}

STANDIN void standin_fail(const char* function, int skip, int status, const char* text) {
  const std::lock_guard lock(state().mutex);
  state().failures[function].push_back({skip, status, text});
}

STANDIN void standin_capture(int on) { capturing = on != 0; }

STANDIN const char* standin_call(int i) {
  const std::lock_guard lock(state().mutex);
  return i < static_cast<int>(state().calls.size()) ? state().calls[i].c_str() : nullptr;
}

STANDIN int standin_last_error() { return last_error; }
