#include "csrc/runtime/driver.hpp"

#include <dlfcn.h>

#include <cstring>
#include <stdexcept>

namespace nf12::runtime {
namespace {

// hipDeviceProp_tR0600 of ROCm 6 and later. By the arch's name the code object is chosen, so the
// struct is read and not the compute capability; its layout is fixed by the function's suffix.
constexpr size_t kPropertiesBytes = 4096;  // the struct has 1,472
constexpr size_t kArchNameOffset = 1160;   // gcnArchName
constexpr size_t kArchNameBytes = 256;

constexpr int kHipMultiprocessors = 63;  // hipDeviceAttributeMultiprocessorCount
constexpr int kCudaMultiprocessors = 16;
constexpr int kCudaSharedBytesOptIn = 97;
constexpr int kCudaCapabilityMajor = 75, kCudaCapabilityMinor = 76;

template <typename F>
void find(void* library, const char* name, Driver::Entry<F>& entry) {
  entry = {reinterpret_cast<F*>(dlsym(library, name)), name};
  if (entry.call == nullptr)
    throw std::runtime_error(std::string("the GPU driver has no function ") + name);
}

Driver hip_driver(void* library) {
  Driver d = {};
  d.vendor = Vendor::kAmd;
  find(library, "hipDeviceGetAttribute", d.device_attribute);
  find(library, "hipThreadExchangeStreamCaptureMode", d.exchange_capture_mode);
  find(library, "hipModuleLoadData", d.load_module);
  find(library, "hipModuleGetFunction", d.find_function);
  find(library, "hipModuleLaunchKernel", d.launch);
  find(library, "hipMemsetD32Async", d.fill_words);
  find(library, "hipMemcpyHtoDAsync", d.copy_to_device);
  find(library, "hipMemcpyDtoHAsync", d.copy_to_host);
  find(library, "hipStreamSynchronize", d.synchronise);
  find(library, "hipGetDevice", d.get_device);
  find(library, "hipSetDevice", d.set_device);
  find(library, "hipGetDevicePropertiesR0600", d.device_properties);
  find(library, "hipGetErrorString", d.error_text);
  find(library, "hipGetLastError", d.take_last_error);
  return d;
}

Driver cuda_driver(void* library) {
  Driver d = {};
  d.vendor = Vendor::kNvidia;
  find(library, "cuDeviceGetAttribute", d.device_attribute);
  find(library, "cuThreadExchangeStreamCaptureMode", d.exchange_capture_mode);
  find(library, "cuModuleLoadData", d.load_module);
  find(library, "cuModuleGetFunction", d.find_function);
  find(library, "cuLaunchKernel", d.launch);
  find(library, "cuMemsetD32Async", d.fill_words);
  find(library, "cuMemcpyHtoDAsync_v2", d.copy_to_device);
  find(library, "cuMemcpyDtoHAsync_v2", d.copy_to_host);
  find(library, "cuStreamSynchronize", d.synchronise);
  find(library, "cuDeviceGet", d.device_of_index);
  find(library, "cuCtxGetCurrent", d.current_context);
  find(library, "cuDevicePrimaryCtxRetain", d.retain_primary_context);
  find(library, "cuCtxPushCurrent_v2", d.push_context);
  find(library, "cuCtxPopCurrent_v2", d.pop_context);
  find(library, "cuGetErrorString", d.store_error_text);
  find(library, "cuFuncSetAttribute", d.set_function_attribute);
  find(library, "cuLaunchKernelEx", d.launch_with);
  find(library, "cuOccupancyMaxActiveClusters", d.count_clusters);
  find(library, "cuTensorMapEncodeTiled", d.encode_tensor_map);
  find(library, "cuStreamGetCaptureInfo_v2", d.capture_info);
  find(library, "cuGraphNodeGetType", d.node_type);
  find(library, "cuGraphKernelNodeGetParams_v2", d.kernel_node_params);
  Driver::Entry<Status(unsigned flags)> initialise;
  find(library, "cuInit", initialise);
  d(initialise, 0u);  // torch may not have touched a GPU yet; a second call does nothing
  return d;
}

Driver open_driver() {
  if (void* torch_hip = dlopen("libtorch_hip.so", RTLD_LAZY | RTLD_NOLOAD))
    return hip_driver(torch_hip);  // dlsym goes on to the libraries that this one needs
  if (dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD) == nullptr)
    throw std::runtime_error("this torch is built without GPUs");
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (cuda == nullptr) throw std::runtime_error(dlerror());
  return cuda_driver(cuda);
}

}  // namespace

const Driver& driver() {
  static const Driver table = open_driver();  // a throw leaves it to the next call
  return table;
}

Driver open_hip_driver(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  Driver driver = hip_driver(library);
  Driver::Entry<const CodeObject*(size_t* count)> stand_ins;
  find(library, "nf12_standin_code_objects", stand_ins);
  size_t count = 0;
  const CodeObject* first = stand_ins.call(&count);
  driver.stand_ins = {first, count};
  return driver;
}

void Driver::fail(const char* name, Status status) const {
  const char* text = nullptr;
  if (vendor == Vendor::kAmd)
    text = error_text.call(status);
  else
    store_error_text.call(status, &text);
  const std::string sentence =
      std::string(name) + ": " + (text != nullptr ? text : "error " + std::to_string(status));
  forget_failure();
  throw std::runtime_error(sentence);
}

void Driver::forget_failure() const {
  if (vendor == Vendor::kAmd) take_last_error.call();
}

std::string Driver::arch_name(int device) const {
  if (vendor == Vendor::kNvidia) {
    int major = 0, minor = 0;
    (*this)(device_attribute, &major, kCudaCapabilityMajor, device);
    (*this)(device_attribute, &minor, kCudaCapabilityMinor, device);
    return "sm_" + std::to_string(major) + std::to_string(minor);
  }
  char properties[kPropertiesBytes] = {};
  (*this)(device_properties, static_cast<void*>(properties), device);
  const char* name = properties + kArchNameOffset;
  // "gfx90a:sramecc+:xnack-": the features behind the name do not choose a code object here.
  const std::string arch(name, strcspn(std::string(name, kArchNameBytes).c_str(), ":"));
  if (!arch.starts_with("gfx"))
    throw std::runtime_error(std::string(device_properties.name) + ": no arch name in its answer");
  return arch;
}

int Driver::multiprocessors(int device) const {
  int count = 0;
  const bool amd = vendor == Vendor::kAmd;
  (*this)(device_attribute, &count, amd ? kHipMultiprocessors : kCudaMultiprocessors, device);
  return count;
}

int Driver::shared_bytes(int device) const {
  int bytes = 0;
  if (vendor == Vendor::kNvidia) (*this)(device_attribute, &bytes, kCudaSharedBytesOptIn, device);
  return bytes;
}

}  // namespace nf12::runtime
