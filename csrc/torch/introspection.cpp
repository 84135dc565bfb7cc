#include "csrc/python/introspection.h"

#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/cpu/level.hpp"
#include "csrc/format/layout.hpp"
#include "csrc/gpu/gemm_table.hpp"
#include "csrc/runtime/code_objects.hpp"
#include "csrc/runtime/device.hpp"
#include "csrc/torch/error.hpp"
#include "csrc/torch/gpu.hpp"
#include "csrc/torch/kernel_override.hpp"
#include "nf12_build_info.hpp"

namespace {

namespace gpu = nf12::gpu;
namespace runtime = nf12::runtime;
using namespace nf12::torch_ops;
using nf12::cpu::Level;

bool is_level(int32_t level) { return level >= 0 && level < nf12::cpu::kLevels; }

// A C caller gets the sentence instead of the exception; it lives until this thread's next one.
template <typename F>
int32_t number_or_error(const char** error, F number) {
  static thread_local std::string sentence;
  try {
    return static_cast<int32_t>(number());
  } catch (const std::exception& e) {
    sentence = e.what();
    *error = sentence.c_str();
    return -1;
  }
}

const gpu::Device& usable_gpu(int32_t index) {
  const gpu::Device& device = gpu::Device::of(index);
  if (!device.has_kernels())
    throw std::runtime_error(device.arch() + " has no kernels here, use backend torch");
  return device;
}

// Each target once, in the order in which they are embedded.
std::string gpu_targets() {
  std::string names;
  const char* last = "";
  for (const nf12::runtime::CodeObject& object : nf12::runtime::code_objects()) {
    if (std::string_view(object.target) == last) continue;
    if (!names.empty()) names += ',';
    names += object.target;
    last = object.target;
  }
  return names;
}

}  // namespace

const char* nf12_version() { return NF12_VERSION; }
const char* nf12_compiler() { return NF12_COMPILER; }
const char* nf12_source_hash() { return NF12_SOURCE_HASH; }
const char* nf12_torch_target() { return "2.11"; }
const char* nf12_gpu_targets() {
  static const std::string names = gpu_targets();
  return names.c_str();
}
int32_t nf12_format_version() { return nf12::kFormatVersion; }

int32_t nf12_cpu_levels() { return nf12::cpu::kLevels; }
const char* nf12_cpu_level_name(int32_t level) {
  return is_level(level) ? nf12::cpu::level_name(static_cast<Level>(level)) : nullptr;
}
int32_t nf12_cpu_level_supported(int32_t level) {
  return is_level(level) && nf12::cpu::level_supported(static_cast<Level>(level));
}

int32_t nf12_cpu_highest_level(const char** error) {
  return number_or_error(error, nf12::cpu::highest_level);
}
int32_t nf12_cpu_select(int64_t m, int64_t n, int64_t k, const char** error) {
  return number_or_error(
      error, [=] { return nf12::cpu::select_level(m, n, k, nf12::cpu::highest_level()); });
}

int32_t nf12_kernels() { return kKernelNames; }
const char* nf12_kernel_name(int32_t number) { return kernel_name(number); }

int32_t nf12_set_kernel_override(int32_t number) {
  const bool known = number == kNoOverride || kernel_name(number) != nullptr;
  if (!known || (is_level(number) && !nf12_cpu_level_supported(number))) return 0;
  kernel_override = number;
  return 1;
}
int32_t nf12_kernel_override() { return kernel_override; }

void nf12_set_dependent_launch(int32_t allowed) { runtime::set_dependent_launch(allowed != 0); }
int32_t nf12_dependent_launch() { return runtime::dependent_launch(); }

int32_t nf12_gpu_kernels() { return runtime::kKernels; }
const char* nf12_gpu_kernel_name(int32_t i) {
  return i >= 0 && i < runtime::kKernels ? runtime::kKernelNames[i] : nullptr;
}
int32_t nf12_gpu_usable(int32_t index, const char** error) {
  return number_or_error(error, [=] { return usable_gpu(index).has_kernels(); });
}
int32_t nf12_gpu_select(int64_t m, int64_t n, int64_t k, int32_t index, int32_t* tokens,
                        int32_t* splits, int32_t* tuned, const char** error) {
  return number_or_error(error, [=] {
    const gpu::Device& device = usable_gpu(index);
    nf12::PackedView weight = {};
    weight.n = n;
    weight.k = k;
    weight.index_stride = nf12::tile_columns(k);
    weight.payload_stride_bytes = weight.index_stride * nf12::kTileBytes;
    const int64_t tokens_of_x = m > 0 ? m : 1;  // m = 0 launches nothing
    const nf12::GemmTable* table = gpu::gemm_table(device);
    const nf12::GemmChoice choice = nf12::select_gemm(
        table, gpu::gemm_traits(device),
        {.weight = weight, .m = tokens_of_x, .x_stride = k, .y_is_aligned = n % 8 == 0});
    *tuned = table != nullptr && table->find(n, k, tokens_of_x) == choice.path;
    if (!choice) throw std::runtime_error(device.arch() + " has no gemm kernels here");
    *tokens = choice.tokens;
    *splits = choice.splits;
    return nf12::cpu::kLevels + static_cast<int>(choice.path);
  });
}

int32_t nf12_set_gemm_table(int32_t index, const int64_t* numbers, int32_t rows,
                            const char** error) {
  return number_or_error(error, [=] {
    std::vector<nf12::GemmTableRow> table;
    for (int32_t i = 0; i < rows; ++i) {
      const int64_t* row = numbers + 5 * i;
      const int64_t path = row[4] - nf12::cpu::kLevels;
      if (path < 0 || path >= nf12::kGemmPaths || row[0] < 1 || row[1] < 1 || row[2] < 1 ||
          row[3] < row[2])
        throw std::runtime_error("row " + std::to_string(i) + " of the table is no row");
      table.push_back({row[0], row[1], row[2], row[3], static_cast<nf12::GemmPath>(path)});
    }
    gpu::set_gemm_table(usable_gpu(index), std::move(table));
    return 0;
  });
}

int32_t nf12_pretend_gpu(const char* driver, int32_t index, void* stream, int64_t slice_bytes,
                         const char** error) {
  return number_or_error(error, [=] {
    if (driver != nullptr) runtime::use_driver(driver[0] == '\0' ? nullptr : driver);
    pretend_gpu(index, stream, slice_bytes);
    return 0;
  });
}
