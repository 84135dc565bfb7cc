// The GPU backend: what csrc/torch calls. Knows no torch; memory and the stream come from the
// caller, who has validated the arguments (csrc/torch/checks).
//
// Payload and side table lie at multiples of 16 bytes, tile rows and experts likewise. Everything
// here only enqueues, unless it says that it waits. Results never depend on timing: equal calls
// give equal bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "csrc/cpu/cpu.hpp"
#include "csrc/format/check.hpp"
#include "csrc/format/stack.hpp"
#include "csrc/gemm/select.hpp"
#include "csrc/runtime/device.hpp"

namespace nf12::gpu {

using runtime::Device;
using runtime::Queue;

// ---- gemm: y = x W^T + bias, y[i, j] = bf16(fma(acc, 2^-s, bias[j])) ----

const GemmTraits& gemm_traits(const Device& device);

struct GemmArgs {
  const uint16_t* x;  // [m, k] BF16, any row stride (elements)
  int64_t x_row_stride;
  int64_t m;  // >= 1
  PackedView w;
  const uint16_t* bias;  // [n] BF16, or null
  uint16_t* y;           // [m, n], every element written once
  int64_t y_row_stride;
};

// A launch of any path but the buffered one, ready to go but for its workspace.
struct GemmLaunch {
  runtime::Kernel kernel;
  Grid grid;
  union {
    GemmParams gemm;
    StreamParams stream;        // a gemm, and more
    ClusterParams cluster;      // likewise
    WarpgroupParams warpgroup;  // a cluster, and more
    WideParams wide;
    OnceParams once;  // a wide, and more
  } params;
  GemmPath path;
  WideShape wide;        // wide; else no tokens
  int warpgroup_tokens;  // of its kernel; else 0
  int shared_bytes;      // stream, cluster, wide; else 0
  int64_t tokens;        // of all launches; of each, as many as its params say
  size_t workspace_bytes;
};
GemmLaunch plan_gemm(const GemmArgs& args, const GemmChoice& choice, const GemmTraits& traits);
void gemm(Queue& queue, const GemmLaunch& launch, void* workspace);

// ---- unpack: exact BF16, row-major ----

// What writes rows of an alignment; the device may lack it.
runtime::Kernel unpack_kernel(const Device& device, int alignment);

// out [experts, n, k], contiguous; experts * tiles must be countable (tiles_countable).
void unpack(Queue& queue, const PackedStack& w, int64_t experts, uint16_t* out);

// ---- gather: out[i, :] = row ids[i] of w; NaN 0x7FFF for an id outside [0, n) ----

// ids: int32 or int64, contiguous; out [count, k], contiguous.
void gather(Queue& queue, const PackedView& w, const void* ids, int id_bytes, int64_t count,
            uint16_t* out);

// ---- pack: two calls as on a CPU, with the same bytes; the first one waits ----

struct PackSource {
  DenseStack<const uint16_t> weights;  // [experts, n, k]; tiles_countable
  int64_t experts;
};
struct PackPlan {
  cpu::PackStatus status;
  int32_t base;
  int64_t quads;        // length of the side table / 4
  uint32_t raw_owners;  // tiles that write a raw table
};
// Of device memory, 8-byte aligned, that both calls are given; the second one finds there what the
// first one left.
size_t pack_workspace_bytes(const PackSource& source);
// Chooses the base (base = -1) or checks the caller's, and writes every index word, [X, R, C].
PackPlan plan_pack(Queue& queue, const PackSource& source, int base, uint32_t* index,
                   void* workspace);
void write_pack(Queue& queue, const PackSource& source, const PackPlan& plan,
                const cpu::PackResult& result, void* workspace);

// ---- check: the reader's rules, with the answer of cpu::check; waits ----

// is_stack: whether the weight has experts to name; scratch: one word of device memory.
Violation check(Queue& queue, const PackedStack& packed, int64_t experts, bool is_stack,
                uint32_t* scratch);

}  // namespace nf12::gpu
