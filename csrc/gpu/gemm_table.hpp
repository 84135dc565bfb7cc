// The table of measured paths that a GPU of this process has, if any.
#pragma once
#include <vector>

#include "csrc/gemm/table.hpp"
#include "csrc/runtime/device.hpp"

namespace nf12::gpu {

// Null without one. A load, so that each call of gemm can ask; what it points at stays.
const GemmTable* gemm_table(const runtime::Device& device);

// For all threads, from their next call on. No rows: no table.
void set_gemm_table(const runtime::Device& device, std::vector<GemmTableRow> rows);

}  // namespace nf12::gpu
