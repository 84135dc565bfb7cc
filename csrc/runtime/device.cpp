#include "csrc/runtime/device.hpp"

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace nf12::runtime {
namespace {

constexpr int kCudaMostSharedBytes = 8;        // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kCudaClusterDimension = 4;       // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
constexpr int kCudaDependentLaunch = 6;        // ..._PROGRAMMATIC_STREAM_SERIALIZATION
constexpr int kCudaBf16 = 9, kCudaUint64 = 4;  // CU_TENSOR_MAP_DATA_TYPE_*
constexpr int kCudaSwizzle128 = 3;             // CU_TENSOR_MAP_SWIZZLE_128B
constexpr int kCudaPromotion256 = 3;           // CU_TENSOR_MAP_L2_PROMOTION_L2_256B
constexpr const char* kNvidiaTarget = "sm";    // one fatbin for all of them

// Modules cannot be loaded in a thread that captures a stream unless it says that it knows what it
// does; loading touches no captured work.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
    driver_(driver_.exchange_capture_mode, &mode_);
  }
  ~RelaxedCapture() { driver_.exchange_capture_mode.call(&mode_); }

 private:
  const Driver& driver_;
  int mode_ = kCaptureModeRelaxed;
};

std::atomic<bool> dependent_launch_allowed = true;

// Of "sm_90".
int compute_capability(const std::string& arch) { return std::stoi(arch.substr(strlen("sm_"))); }

}  // namespace

// All devices of a process. Lives forever: streams may still run when static objects go.
class Devices {
 public:
  static Devices& all() {
    static auto* devices = new Devices;
    return *devices;
  }

  const Device& of(int index) {
    if (index < 0 || index >= kMostDevices)
      throw std::runtime_error("device number " + std::to_string(index) + ", expected 0 .. 63");
    const Device* device = known_[index].load(std::memory_order_acquire);
    return device != nullptr ? *device : add(index);
  }

  void use_driver(const char* path) {
    const std::lock_guard lock(mutex_);
    for (auto& device : known_) device = nullptr;
    own_driver_ = nullptr;
    if (path == nullptr) return;
    drivers_.push_back(std::make_unique<Driver>(open_hip_driver(path)));
    own_driver_ = drivers_.back().get();
  }

 private:
  const Device& add(int index) {
    const std::lock_guard lock(mutex_);
    if (const Device* device = known_[index].load(std::memory_order_relaxed)) return *device;
    std::unique_ptr<Device> device(
        new Device(own_driver_ != nullptr ? *own_driver_ : driver(), index));
    device->load_kernels();
    devices_.push_back(std::move(device));
    known_[index].store(devices_.back().get(), std::memory_order_release);
    return *devices_.back();
  }

  std::mutex mutex_;
  std::array<std::atomic<const Device*>, kMostDevices> known_ = {};
  const Driver* own_driver_ = nullptr;
  // All there ever were: a test's thread may still hold one of a driver before.
  std::vector<std::unique_ptr<const Device>> devices_;
  std::vector<std::unique_ptr<const Driver>> drivers_;
};

const Device& Device::of(int index) { return Devices::all().of(index); }
void use_driver(const char* path) { Devices::all().use_driver(path); }

void set_dependent_launch(bool allowed) { dependent_launch_allowed = allowed; }
bool dependent_launch() { return dependent_launch_allowed.load(std::memory_order_relaxed); }

Device::Device(const Driver& driver, int index) : driver_(&driver), index_(index) {
  int device = index;
  if (vendor() == Vendor::kNvidia) {
    driver(driver.device_of_index, &device, index);
    driver(driver.retain_primary_context, &context_, device);
  }
  arch_ = driver.arch_name(device);
  multiprocessors_ = driver.multiprocessors(device);
  shared_bytes_ = driver.shared_bytes(device);
  has_dependent_launch_ = vendor() == Vendor::kNvidia && compute_capability(arch_) >= 90;
}

void Device::load_kernels() {
  const std::string target = vendor() == Vendor::kNvidia ? kNvidiaTarget : arch_;
  const RelaxedCapture relaxed(*driver_);
  const Queue queue(*this, nullptr);  // modules belong to the current device
  for (const auto objects : {code_objects(), driver_->stand_ins}) {
    for (const CodeObject& object : objects) {
      if (object.target != target) continue;
      if (!load_module(object)) return;
      has_kernels_ = true;
    }
    if (has_kernels_) break;
  }
  if (has_dependent_launch_) count_clusters();  // what brought the one brought the other
}

// With all the shared memory, so that a block has its multiprocessor for itself.
void Device::count_clusters() {
  const Function kernel = function(Kernel::gemm_cluster_t64);
  if (kernel == nullptr) return;
  for (int blocks = 2; blocks <= arch::kMostClusterBlocks; ++blocks) {
    LaunchAttribute dimension = {.id = kCudaClusterDimension, .value = {blocks, 1, 1}};
    const LaunchConfig config = {.grid = {static_cast<unsigned>(blocks), 1, 1},
                                 .block = {512, 1, 1},
                                 .shared_bytes = static_cast<unsigned>(shared_bytes_),
                                 .stream = nullptr,
                                 .attributes = &dimension,
                                 .attribute_count = 1};
    if (driver_->count_clusters.call(&clusters_[blocks], kernel, &config) != 0)
      clusters_[blocks] = 0;  // a size that this GPU does not have
  }
}

// False if an NVIDIA GPU is older than anything in the fatbin, or its driver is.
bool Device::load_module(const CodeObject& object) {
  const Driver& driver = *driver_;
  Module module = nullptr;
  const Status status = driver.load_module.call(&module, object.bytes.data());
  if (vendor() == Vendor::kNvidia && (status == kNoBinaryForGpu || status == kUnsupportedPtx))
    return false;
  if (status != 0) driver.fail(driver.load_module.name, status);
  const std::string prefix = std::string("nf12_") + object.unit;
  for (size_t i = 0; i < functions_.size(); ++i) {
    if (!std::string_view(kKernelNames[i]).starts_with(prefix)) continue;
    const Status found = driver.find_function.call(&functions_[i], module, kKernelNames[i]);
    if (found == kNotFound)
      driver.forget_failure();  // a build may leave kernels out
    else if (found != 0)
      driver.fail(driver.find_function.name, found);
    else if (vendor() == Vendor::kNvidia && takes_shared_memory(static_cast<Kernel>(i)) &&
             driver.set_function_attribute.call(functions_[i], kCudaMostSharedBytes,
                                                shared_bytes_) != 0)
      functions_[i] = nullptr;  // as if it were not there
  }
  return true;
}

void Device::encode_tensor_map(void* map, const TensorBoxes& boxes) const {
  const uint64_t sizes[] = {static_cast<uint64_t>(boxes.columns),
                            static_cast<uint64_t>(boxes.rows)};
  const uint64_t strides[] = {static_cast<uint64_t>(boxes.row_stride_bytes)};
  const uint32_t box[] = {static_cast<uint32_t>(boxes.box_columns),
                          static_cast<uint32_t>(boxes.box_rows)};
  const uint32_t steps[] = {1, 1};
  (*driver_)(driver_->encode_tensor_map, map, boxes.element_bytes == 8 ? kCudaUint64 : kCudaBf16,
             2u, const_cast<void*>(boxes.base), &sizes[0], &strides[0], &box[0], &steps[0],
             /*interleave=*/0, boxes.swizzled ? kCudaSwizzle128 : 0, kCudaPromotion256,
             /*fill=*/0);
}

Queue::Queue(const Device& device, Stream stream) : device_(device), stream_(stream) {
  const Driver& driver = *device.driver_;
  if (driver.vendor == Vendor::kAmd) {
    int current = -1;
    driver(driver.get_device, &current);
    if (current == device.index_) return;
    driver(driver.set_device, device.index_);
    device_before_ = current;
  } else {
    void* current = nullptr;  // stays null on a thread that has not used the driver yet
    driver(driver.current_context, &current);
    if (current == device.context_) return;
    driver(driver.push_context, device.context_);
    pushed_ = true;
  }
}

Queue::~Queue() {
  const Driver& driver = *device_.driver_;
  void* ours = nullptr;
  if (device_before_ >= 0) driver.set_device.call(device_before_);
  if (pushed_) driver.pop_context.call(&ours);
}

void Queue::launch_raw(Kernel kernel, int64_t blocks_x, int64_t blocks_y, int threads,
                       void** arguments) {
  const Driver& driver = *device_.driver_;
  driver(driver.launch, device_.function(kernel), static_cast<unsigned>(blocks_x),
         static_cast<unsigned>(blocks_y), 1u, static_cast<unsigned>(threads), 1u, 1u,
         /*shared_bytes=*/0u, stream_, arguments, static_cast<void**>(nullptr));
}

// In a graph, whether the one node before ours is a kernel of ours that lets its successor start.
// After any other one the attribute gains nothing and costs 0.6 us (a decode step on an H200,
// 2026-11-30). Outside of graphs nobody knows what is before, and the host hides it.
bool Queue::may_start_early() const {
  constexpr int kNone = 0, kKernelNode = 0;
  const Driver& driver = *device_.driver_;
  int capturing = kNone;
  uint64_t id = 0;
  void* graph = nullptr;
  void* const* nodes = nullptr;
  size_t count = 0;
  if (driver.capture_info.call(stream_, &capturing, &id, &graph, &nodes, &count) != 0 ||
      capturing == kNone)
    return true;
  int type = -1;
  if (count != 1 || driver.node_type.call(nodes[0], &type) != 0 || type != kKernelNode)
    return false;
  void* params[16] = {};
  if (driver.kernel_node_params.call(nodes[0], params) != 0) return false;
  for (int i = 0; i < kKernels; ++i)
    if (const auto kernel = static_cast<Kernel>(i); starts_successor(kernel))
      if (device_.function(kernel) != nullptr && device_.function(kernel) == params[0]) return true;
  return false;
}
void Queue::launch_dependent_raw(Kernel kernel, const Blocks& blocks, int cluster, int threads,
                                 int shared_bytes, void** arguments, bool waits) {
  const Driver& driver = *device_.driver_;
  const bool early =
      waits && device_.has_dependent_launch_ && dependent_launch() && may_start_early();
  LaunchAttribute attributes[2];
  unsigned count = 0;
  if (early) attributes[count++] = {.id = kCudaDependentLaunch, .value = {1}};
  if (cluster > 1) attributes[count++] = {.id = kCudaClusterDimension, .value = {cluster, 1, 1}};
  const LaunchConfig config = {
      .grid = {static_cast<unsigned>(blocks.x), static_cast<unsigned>(blocks.y), 1},
      .block = {static_cast<unsigned>(threads), 1, 1},
      .shared_bytes = static_cast<unsigned>(shared_bytes),
      .stream = stream_,
      .attributes = attributes,
      .attribute_count = count};
  driver(driver.launch_with, &config, device_.function(kernel), arguments,
         static_cast<void**>(nullptr));
}

void Queue::fill_words(uint32_t* target, uint32_t value, size_t words) {
  const Driver& driver = *device_.driver_;
  driver(driver.fill_words, reinterpret_cast<uintptr_t>(target), value, words, stream_);
}

void Queue::zero(void* target, size_t bytes) {
  fill_words(static_cast<uint32_t*>(target), 0, bytes / 4);
}

void Queue::to_device(void* target, const void* source, size_t bytes) {
  const Driver& driver = *device_.driver_;
  driver(driver.copy_to_device, reinterpret_cast<uintptr_t>(target), source, bytes, stream_);
}

void Queue::to_host(void* target, const void* source, size_t bytes) {
  const Driver& driver = *device_.driver_;
  driver(driver.copy_to_host, target, reinterpret_cast<uintptr_t>(source), bytes, stream_);
  wait();
}

void Queue::wait() {
  const Driver& driver = *device_.driver_;
  driver(driver.synchronise, stream_);
}

}  // namespace nf12::runtime
