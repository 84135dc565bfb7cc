#include "csrc/python/introspection.h"

#include <exception>
#include <string>

#include "csrc/cpu/level.hpp"
#include "csrc/format/layout.hpp"
#include "csrc/torch/kernel_override.hpp"
#include "nf12_build_info.hpp"

namespace {

using nf12::cpu::Level;
using nf12::torch_ops::kernel_override;

bool is_level(int32_t level) { return level >= 0 && level < nf12::cpu::kLevels; }

// A C caller gets the sentence instead of the exception; it lives until this thread's next one.
template <typename F>
int32_t level_or_error(const char** error, F level) {
  static thread_local std::string sentence;
  try {
    return static_cast<int32_t>(level());
  } catch (const std::exception& e) {
    sentence = e.what();
    *error = sentence.c_str();
    return -1;
  }
}

}  // namespace

const char* nf12_version() { return NF12_VERSION; }
const char* nf12_compiler() { return NF12_COMPILER; }
const char* nf12_source_hash() { return NF12_SOURCE_HASH; }
const char* nf12_torch_target() { return "2.11"; }
const char* nf12_gpu_targets() { return ""; }
int32_t nf12_format_version() { return nf12::kFormatVersion; }

int32_t nf12_cpu_levels() { return nf12::cpu::kLevels; }
const char* nf12_cpu_level_name(int32_t level) {
  return is_level(level) ? nf12::cpu::level_name(static_cast<Level>(level)) : nullptr;
}
int32_t nf12_cpu_level_supported(int32_t level) {
  return is_level(level) && nf12::cpu::level_supported(static_cast<Level>(level));
}

int32_t nf12_cpu_highest_level(const char** error) {
  return level_or_error(error, nf12::cpu::highest_level);
}
int32_t nf12_cpu_select(int64_t m, int64_t n, int64_t k, const char** error) {
  return level_or_error(
      error, [=] { return nf12::cpu::select_level(m, n, k, nf12::cpu::highest_level()); });
}

int32_t nf12_set_kernel_override(int32_t level) {
  if (level == -1) {
    kernel_override.reset();
    return 1;
  }
  if (!nf12_cpu_level_supported(level)) return 0;
  kernel_override = static_cast<Level>(level);
  return 1;
}
int32_t nf12_kernel_override() {
  return kernel_override ? static_cast<int32_t>(*kernel_override) : -1;
}
