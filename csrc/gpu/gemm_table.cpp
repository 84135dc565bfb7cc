#include "csrc/gpu/gemm_table.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

namespace nf12::gpu {
namespace {

std::array<std::atomic<const GemmTable*>, runtime::kMostDevices> tables = {};

// All there ever were: another thread may still read one that was replaced.
void keep(std::unique_ptr<const GemmTable> table) {
  static std::mutex mutex;
  static auto* kept = new std::vector<std::unique_ptr<const GemmTable>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(table));
}

}  // namespace

const GemmTable* gemm_table(const runtime::Device& device) {
  return tables[device.index()].load(std::memory_order_acquire);
}

void set_gemm_table(const runtime::Device& device, std::vector<GemmTableRow> rows) {
  const GemmTable* table = nullptr;
  if (!rows.empty()) {
    auto made = std::make_unique<const GemmTable>(std::move(rows));
    table = made.get();
    keep(std::move(made));
  }
  tables[device.index()].store(table, std::memory_order_release);
}

}  // namespace nf12::gpu
