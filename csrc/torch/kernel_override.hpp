// The kernel a thread asked for by name (nf12.use_kernel, kernel=, NF12_KERNEL), over `select`.
#pragma once
#include <optional>

#include "csrc/cpu/level.hpp"

namespace nf12::torch_ops {

inline thread_local std::optional<cpu::Level> kernel_override;

}  // namespace nf12::torch_ops
