// A GPU as the operators use it: what it is, its kernels, and work on one of its streams.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/arch/words.hpp"
#include "csrc/runtime/code_objects.hpp"
#include "csrc/runtime/driver.hpp"
#include "csrc/runtime/kernels.hpp"

namespace nf12::runtime {

inline constexpr int kMostDevices = 64;  // of a process

// A matrix in memory whose boxes a kernel copies, for encode_tensor_map.
struct TensorBoxes {
  const void* base;   // at a multiple of 16 bytes
  int element_bytes;  // 2 (BF16) or 8
  int64_t columns, rows;
  int64_t row_stride_bytes;  // a multiple of 16
  int box_columns, box_rows;
  bool swizzled;  // rows of 128 bytes in shared memory, their pieces of 16 permuted
};

class Device {
 public:
  // The device with torch's number `index`. The first call for it asks the driver and loads the
  // code objects of its arch, also while a stream is being captured; later ones are a load.
  static const Device& of(int index);

  int index() const { return index_; }  // torch's number
  Vendor vendor() const { return driver_->vendor; }
  const std::string& arch() const { return arch_; }  // "gfx1201", "sm_90"
  // As the driver counts: work-group processors (two compute units) on RDNA, SMs on NVIDIA.
  int multiprocessors() const { return multiprocessors_; }

  // That a launch may give a block, for kernels that take it (takes_shared_memory).
  int shared_bytes() const { return shared_bytes_; }

  // Clusters of so many blocks that run at once, each block having a multiprocessor for itself; 0
  // where the GPU has none.
  int clusters(int blocks) const { return clusters_[blocks]; }

  // NVIDIA: 128 bytes at a multiple of 64, for a kernel's arguments. Host work alone, also while a
  // stream is being captured.
  void encode_tensor_map(void* map, const TensorBoxes& boxes) const;

  // False for a GPU whose arch no code object names: backend torch runs its tensors.
  bool has_kernels() const { return has_kernels_; }
  bool has(Kernel kernel) const { return function(kernel) != nullptr; }

 private:
  friend class Queue;
  friend class Devices;

  explicit Device(const Driver& driver, int index);
  void load_kernels();
  bool load_module(const CodeObject& object);
  void count_clusters();
  Function function(Kernel kernel) const { return functions_[static_cast<size_t>(kernel)]; }

  const Driver* driver_;
  int index_;
  void* context_ = nullptr;  // NVIDIA: the primary one, which torch uses too
  std::string arch_;
  int multiprocessors_ = 0;
  int shared_bytes_ = 0;
  std::array<int, arch::kMostClusterBlocks + 1> clusters_ = {};
  bool has_dependent_launch_ = false;
  bool has_kernels_ = false;
  std::array<Function, kKernels> functions_ = {};
};

// A stream of a device, which is the thread's current one as long as the queue lives: a null stream
// means the current device's. What a call enqueues runs in order; nothing waits but `wait` and
// `to_host`. Failures throw "hipModuleLaunchKernel: <the driver's text>".
class Queue {
 public:
  Queue(const Device& device, Stream stream);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  const Device& device() const { return device_; }

  // Params: the kernel's one argument, by value. The kernel must be there (Device::has).
  template <typename Params>
  void launch(Kernel kernel, int64_t blocks_x, int64_t blocks_y, int threads, Params params) {
    void* arguments[] = {&params};
    launch_raw(kernel, blocks_x, blocks_y, threads, arguments);
  }

  struct Blocks {
    int64_t x, y = 1;
  };

  // Of a kernel that takes shared memory from the launch and knows dependent launch: where the GPU
  // has it, the kernel starts while the one before still runs, and waits by itself; in a graph that
  // is captured, after a kernel that lets it. `cluster`: blocks of a cluster, side by side in x.
  template <typename Params>
  void launch_dependent(Kernel kernel, Blocks blocks, int cluster, int threads, int shared_bytes,
                        const Params& params) {
    void* arguments[] = {const_cast<Params*>(&params)};
    launch_dependent_raw(kernel, blocks, cluster, threads, shared_bytes, arguments, true);
  }

  // The same of a kernel that does not wait by itself.
  template <typename Params>
  void launch_cluster(Kernel kernel, Blocks blocks, int cluster, int threads, int shared_bytes,
                      const Params& params) {
    void* arguments[] = {const_cast<Params*>(&params)};
    launch_dependent_raw(kernel, blocks, cluster, threads, shared_bytes, arguments, false);
  }

  void fill_words(uint32_t* target, uint32_t value, size_t words);
  void zero(void* target, size_t bytes);  // a multiple of 4, 4-byte aligned
  // `source` may go once the queue was waited for.
  void to_device(void* target, const void* source, size_t bytes);
  void to_host(void* target, const void* source, size_t bytes);  // and waits
  void wait();

 private:
  void launch_raw(Kernel kernel, int64_t blocks_x, int64_t blocks_y, int threads, void** arguments);
  void launch_dependent_raw(Kernel kernel, const Blocks& blocks, int cluster, int threads,
                            int shared_bytes, void** arguments, bool waits);
  bool may_start_early() const;

  const Device& device_;
  Stream stream_;
  int device_before_ = -1;  // AMD: to go back to, -1 if it was ours already
  bool pushed_ = false;     // NVIDIA: our context lies on the thread's stack
};

// Whether launch_dependent lets kernels start early where the GPU can: true, until a benchmark that
// compares the two forms, or someone who looks for a fault, says otherwise for the whole process. A
// captured graph keeps the form that it was captured in.
void set_dependent_launch(bool allowed);
bool dependent_launch();

// For the tests: from now on devices are those of the HIP driver at `path`, all unknown as yet;
// null: of torch's own. The driver brings stand-ins for code objects that this build lacks. No
// operator may run meanwhile.
void use_driver(const char* path);

}  // namespace nf12::runtime
