// The machine of tests/host_model/machine.hpp that is an NVIDIA card. Kernels are the cubins beside
// the program, found by name.
//
// Every launch brings its buffers to the card, each between guard zones, and back: a byte changed
// outside the writable ones fails the test. NF12_SEPARATE_ALLOCATIONS=1 gives each buffer an
// allocation of its own size instead, so that compute-sanitizer sees reads past it too.
//
// At its end a program prints "launches <kernel> <number>", kernel by kernel.
#include "tests/host_model/machine.hpp"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include "tests/host_model/maps.hpp"

namespace nf12::test {

const bool kMatrixOrderIsKnown = false;
const bool kMachineIsFast = true;
const int kMachineBlocks = 300;  // an H200 has 132 multiprocessors

namespace {

using arch::host::Buffer;
using arch::host::Launch;
using arch::host::Report;

constexpr size_t kGuardBytes = 1024;
constexpr uint8_t kGuard = 0xA5;
constexpr int kSharedWithoutAsking = 48 * 1024;

void check(cudaError_t error, const std::string& what) {
  if (error != cudaSuccess) throw Report(what + ": " + cudaGetErrorString(error));
}

class Card {
 public:
  static Card& get() {
    static Card card;
    return card;
  }

  cudaKernel_t kernel(const std::string& name) {
    for (const cudaLibrary_t library : libraries_) {
      cudaKernel_t kernel;
      if (cudaLibraryGetKernel(&kernel, library, name.c_str()) == cudaSuccess) return kernel;
      cudaGetLastError();
    }
    throw Report(name + " is in none of the cubins");
  }

  void launch(const Launch& launch, void* arguments) {
    const cudaKernel_t function = kernel(launch.kernel);
    const dim3 grid(launch.grid_x, launch.grid_y);
    if (launch.shared_bytes > kSharedWithoutAsking)
      check(cudaKernelSetAttributeForDevice(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            launch.shared_bytes, 0),
            launch.kernel);
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(launch.cluster), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(launch.waves * 32);
    config.dynamicSmemBytes = launch.shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = launch.cluster > 1 ? 1 : 0;
    check(cudaLaunchKernelExC(&config, reinterpret_cast<void*>(function), &arguments),
          launch.kernel);
    check(cudaDeviceSynchronize(), launch.kernel);
    ++launches_[launch.kernel];
  }

  // Grows as needed, and keeps what it has.
  char* arena(size_t bytes) {
    if (bytes > arena_bytes_) {
      check(cudaFree(arena_), "cudaFree");
      arena_bytes_ = 2 * bytes;
      check(cudaMalloc(reinterpret_cast<void**>(&arena_), arena_bytes_), "cudaMalloc");
    }
    return arena_;
  }

 private:
  Card() {
    const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".cubin") continue;
      check(cudaLibraryLoadFromFile(&libraries_.emplace_back(), entry.path().c_str(), nullptr,
                                    nullptr, 0, nullptr, nullptr, 0),
            entry.path());
    }
  }
  ~Card() {
    for (const auto& [kernel, count] : launches_)
      std::printf("launches %s %ld\n", kernel.c_str(), count);
  }

  std::vector<cudaLibrary_t> libraries_;
  std::map<std::string, long> launches_;
  char* arena_ = nullptr;
  size_t arena_bytes_ = 0;
};

// The buffers of one launch on the card.
class DeviceBuffers {
 public:
  virtual ~DeviceBuffers() = default;
  // Where the byte at `p` of some buffer lies on the card; null if in none.
  const char* find(const char* p) const {
    for (const Copy& copy : copies_) {
      const auto* begin = static_cast<const char*>(copy.buffer.begin);
      if (begin <= p && p < begin + std::max<size_t>(copy.buffer.bytes, 1))
        return copy.device + (p - begin);
    }
    return nullptr;
  }
  virtual void bring_back() = 0;

 protected:
  struct Copy {
    Buffer buffer;
    char* device;
  };
  // A buffer starts on the card as far from a multiple of 256 as it does here: alignment decides
  // which loads a kernel may use.
  static size_t misalignment(const Buffer& buffer) {
    return reinterpret_cast<uintptr_t>(buffer.begin) % 256;
  }
  static void* writable(const Buffer& buffer) { return const_cast<void*>(buffer.begin); }

  std::vector<Copy> copies_;
};

class GuardedBuffers final : public DeviceBuffers {
 public:
  explicit GuardedBuffers(const std::vector<Buffer>& buffers) {
    size_t end = kGuardBytes;
    std::vector<size_t> at;
    for (const Buffer& buffer : buffers) {
      at.push_back((end + 255) / 256 * 256 + misalignment(buffer));
      end = at.back() + buffer.bytes + kGuardBytes;
    }
    sent_.assign(end, kGuard);
    device_ = Card::get().arena(end);
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].begin == nullptr) continue;
      std::memcpy(&sent_[at[i]], buffers[i].begin, buffers[i].bytes);
      copies_.push_back({buffers[i], device_ + at[i]});
    }
    check(cudaMemcpy(device_, sent_.data(), end, cudaMemcpyHostToDevice), "copy to the card");
  }

  void bring_back() override {
    std::vector<uint8_t> got(sent_.size());
    check(cudaMemcpy(got.data(), device_, got.size(), cudaMemcpyDeviceToHost), "copy back");
    for (const Copy& copy : copies_) {
      if (!copy.buffer.writable) continue;
      const size_t at = copy.device - device_;
      std::memcpy(writable(copy.buffer), &got[at], copy.buffer.bytes);
      std::memcpy(&got[at], &sent_[at], copy.buffer.bytes);  // the rest must be as it was
    }
    for (size_t i = 0; i < got.size(); ++i)
      if (got[i] != sent_[i]) throw Report("written outside the outputs, " + place_of(i));
  }

 private:
  std::string place_of(size_t i) const {
    for (const Copy& copy : copies_) {
      const auto from = static_cast<ptrdiff_t>(i) - (copy.device - device_);
      const auto bytes = static_cast<ptrdiff_t>(copy.buffer.bytes);
      const auto guard = static_cast<ptrdiff_t>(kGuardBytes);
      if (from >= -guard / 2 && from < bytes + guard / 2)
        return "at byte " + std::to_string(from) + " of " + copy.buffer.name + ", which has " +
               std::to_string(bytes);
    }
    return "between buffers";
  }

  std::vector<uint8_t> sent_;
  char* device_;
};

class SeparateBuffers final : public DeviceBuffers {
 public:
  explicit SeparateBuffers(const std::vector<Buffer>& buffers) {
    for (const Buffer& buffer : buffers) {
      if (buffer.begin == nullptr) continue;
      const size_t offset = misalignment(buffer) % 16;
      char* memory;
      check(
          cudaMalloc(reinterpret_cast<void**>(&memory), offset + std::max<size_t>(buffer.bytes, 1)),
          "cudaMalloc");
      allocations_.push_back(memory);
      copies_.push_back({buffer, memory + offset});
      check(cudaMemcpy(memory + offset, buffer.begin, buffer.bytes, cudaMemcpyHostToDevice),
            "copy to the card");
    }
  }
  ~SeparateBuffers() override {
    for (char* memory : allocations_) cudaFree(memory);
  }
  void bring_back() override {
    for (const Copy& copy : copies_)
      if (copy.buffer.writable)
        check(cudaMemcpy(writable(copy.buffer), copy.device, copy.buffer.bytes,
                         cudaMemcpyDeviceToHost),
              "copy back");
  }

 private:
  std::vector<char*> allocations_;
};

CUtensorMap encode(const TensorLayout& layout, const char* base) {
  static const auto call = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                           cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(layout.columns),
                              static_cast<cuuint64_t>(layout.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(layout.row_stride_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(layout.box_columns),
                            static_cast<cuuint32_t>(layout.box_rows)};
  const cuuint32_t steps[] = {1, 1};
  CUtensorMap map;
  const CUresult status = call(
      &map,
      layout.element_bytes == 8 ? CU_TENSOR_MAP_DATA_TYPE_UINT64 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      2, const_cast<char*>(base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      layout.permuted ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw Report("cuTensorMapEncodeTiled: error " + std::to_string(status) + ", " +
                 std::to_string(layout.columns) + " x " + std::to_string(layout.rows) +
                 ", rows at " + std::to_string(layout.row_stride_bytes) + " bytes");
  return map;
}

}  // namespace

namespace {

void run_with_maps(const Launch& launch, std::span<const std::byte> arguments,
                   std::span<const MapOfBuffer> maps) {
  std::unique_ptr<DeviceBuffers> buffers;
  if (std::getenv("NF12_SEPARATE_ALLOCATIONS"))
    buffers = std::make_unique<SeparateBuffers>(launch.buffers);
  else
    buffers = std::make_unique<GuardedBuffers>(launch.buffers);
  // Arguments that point into a buffer, for a card's copy of it.
  std::vector<std::byte> translated(arguments.begin(), arguments.end());
  for (size_t at = 0; at + sizeof(char*) <= translated.size(); at += sizeof(char*)) {
    const char* word;
    std::memcpy(&word, &translated[at], sizeof(word));
    if (const char* device = buffers->find(word))
      std::memcpy(&translated[at], &device, sizeof(device));
  }
  for (const MapOfBuffer& map : maps) {
    const char* base = buffers->find(static_cast<const char*>(map.layout.base));
    const CUtensorMap encoded = encode(map.layout, base);
    std::memcpy(&translated[map.offset], &encoded, sizeof(encoded));
  }
  Card::get().launch(launch, translated.data());
  buffers->bring_back();
}

}  // namespace

void run_kernel(const Launch& launch, std::span<const std::byte> arguments,
                const std::function<void()>&) {
  run_with_maps(launch, arguments, {});
}

void run_kernel(const Launch& launch, std::span<std::byte> arguments,
                std::span<const MapOfBuffer> maps, const std::function<void()>&) {
  run_with_maps(launch, arguments, maps);
}

}  // namespace nf12::test
