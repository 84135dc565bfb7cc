// The shipped kernels as the host model runs them, from the bytes of their one argument.
#pragma once
#include <cstddef>
#include <cstring>
#include <vector>

#include "csrc/arch/host/model.hpp"
#include "csrc/format/layout.hpp"

namespace nf12::standin {

using arch::host::Buffer;

struct Kernel {
  const char* name;
  size_t argument_bytes;
  int threads;  // of a block, as compiled in
  // All memory that the argument allows the kernel to touch.
  std::vector<Buffer> (*buffers)(const void* argument);
  void (*lane)(const void* argument);  // one lane of the model
};

// kernel: a function of the instances/ folders, which takes its Params by value.
template <typename Params, void (*kernel)(Params), std::vector<Buffer> (*buffers)(const Params&)>
Kernel model_of(const char* name, int threads) {
  return {name, sizeof(Params), threads,
          [](const void* argument) { return buffers(*static_cast<const Params*>(argument)); },
          [](const void* argument) { kernel(*static_cast<const Params*>(argument)); }};
}

inline Buffer read_only(const void* p, int64_t bytes, const char* name) {
  return {p, p == nullptr ? 0 : static_cast<size_t>(bytes), false, name};
}
inline Buffer writable(const void* p, int64_t bytes, const char* name) {
  return {p, p == nullptr ? 0 : static_cast<size_t>(bytes), true, name};
}

// Payload, index and escapes of a weight, of `experts` the given strides apart.
inline std::vector<Buffer> weight_buffers(const PackedView& w, int64_t experts = 1,
                                          int64_t payload_stride_bytes = 0,
                                          int64_t index_stride = 0) {
  const int64_t last_row = tile_rows(w.n) - 1, columns = tile_columns(w.k);
  return {
      read_only(w.payload,
                (experts - 1) * payload_stride_bytes + last_row * w.payload_stride_bytes +
                    columns * kTileBytes,
                "payload"),
      read_only(w.index, 4 * ((experts - 1) * index_stride + last_row * w.index_stride + columns),
                "index"),
      read_only(w.escapes, int64_t{16} * w.quads, "escapes")};
}

std::vector<Kernel> fused_kernels();
std::vector<Kernel> matrix_kernels();
std::vector<Kernel> whole_weight_kernels();

}  // namespace nf12::standin
