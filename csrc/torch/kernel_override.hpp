// The gemm kernel that someone asked for by name, over `select`: a thread by nf12.use_kernel or
// kernel=, or everyone by the variable NF12_KERNEL. A name is a level of the CPU kernels or a path
// of the GPU kernels; it has no effect on tensors of the other kind of device.
#pragma once
#include <optional>

#include "csrc/cpu/level.hpp"
#include "csrc/gemm/select.hpp"

namespace nf12::torch_ops {

// Names by number: the levels of the CPU, least first, then the paths of GPUs.
inline constexpr int kKernelNames = cpu::kLevels + kGemmPaths;
const char* kernel_name(int number);

inline constexpr int kNoOverride = -1;
inline thread_local int kernel_override = kNoOverride;

// Errors of the variable, an unknown name or a level that this machine lacks, are thrown here.
std::optional<cpu::Level> wanted_level();
std::optional<GemmPath> wanted_path();

}  // namespace nf12::torch_ops
