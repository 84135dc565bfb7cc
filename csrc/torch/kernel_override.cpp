#include "csrc/torch/kernel_override.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace nf12::torch_ops {
namespace {

bool is_level(int number) { return number >= 0 && number < cpu::kLevels; }
bool is_path(int number) { return number >= cpu::kLevels && number < kKernelNames; }

const char* highest_supported() {
  int level = cpu::kLevels - 1;
  while (!cpu::level_supported(static_cast<cpu::Level>(level))) --level;
  return cpu::level_name(static_cast<cpu::Level>(level));
}

int number_from_environment() {
  const char* variable = std::getenv("NF12_KERNEL");
  const std::string name = variable == nullptr ? "" : variable;
  if (name.empty() || name == "auto") return kNoOverride;
  std::string known;
  for (int number = 0; number < kKernelNames; ++number) {
    if (number > 0) known += ", ";
    known += kernel_name(number);
    if (name != kernel_name(number)) continue;
    if (is_level(number) && !cpu::level_supported(static_cast<cpu::Level>(number)))
      throw std::runtime_error("nf12: NF12_KERNEL is " + name + ", this machine supports up to " +
                               highest_supported());
    return number;
  }
  throw std::runtime_error("nf12: NF12_KERNEL is " + name + ", not one of " + known);
}

// Read once; a throw leaves it to the next call.
int environment_number() {
  static const int number = number_from_environment();
  return number;
}

}  // namespace

const char* kernel_name(int number) {
  if (is_level(number)) return cpu::level_name(static_cast<cpu::Level>(number));
  return is_path(number) ? name_of(static_cast<GemmPath>(number - cpu::kLevels)) : nullptr;
}

std::optional<cpu::Level> wanted_level() {
  if (is_level(kernel_override)) return static_cast<cpu::Level>(kernel_override);
  const int number = environment_number();
  return is_level(number) ? std::optional(static_cast<cpu::Level>(number)) : std::nullopt;
}

std::optional<GemmPath> wanted_path() {
  const int number = is_path(kernel_override) ? kernel_override : environment_number();
  if (!is_path(number)) return std::nullopt;
  return static_cast<GemmPath>(number - cpu::kLevels);
}

}  // namespace nf12::torch_ops
