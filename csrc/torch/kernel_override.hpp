// The kernel a thread asked for by name (nf12.use_kernel, kernel=), over NF12_KERNEL and `select`.
#pragma once
#include <optional>

#include "csrc/cpu/level.hpp"

namespace nf12::torch_ops {

inline thread_local std::optional<cpu::Level> kernel_override;

}  // namespace nf12::torch_ops
