// The CPU backend: what csrc/torch calls. Knows no torch; threads and memory come from the caller.
//
// Every function here has validated arguments (csrc/torch/checks) and reports what only the data
// can show (an out-of-range id, a base that would lose bits) through its result, never by a crash.
// Results never depend on the number of threads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/cpu/level.hpp"
#include "csrc/format/check.hpp"
#include "csrc/format/layout.hpp"

namespace nf12::cpu {

// Borrowed threads: run(begin, end, grain, body, context) splits [begin, end) and calls
// body(begin_i, end_i, context) for each part; torch_parallel_for has this shape.
struct Parallel {
  void (*run)(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*),
              void* context);
  int64_t num_threads;
};

// Packing is two calls, since the size of the table is known only after a pass over the weights.
struct PackSource {
  const uint16_t* weight;  // BF16 bits, rows contiguous: expert x, row r at
                           // weight + x * expert_stride + r * row_stride
  int64_t experts, n, k;
  int64_t expert_stride, row_stride;  // elements
};
struct PackResult {
  uint8_t* payload;   // [X, R, C, 1536], contiguous
  uint32_t* index;    // [X, R, C], written by plan_pack
  uint32_t* escapes;  // [4 * quads], 16-byte aligned
};
enum class PackStatus { kOk, kBaseLosesBits, kTableTooLarge };
struct PackPlan {
  PackStatus status;
  int32_t base;
  int64_t quads;  // length of the side table / 4
};
// Chooses the base (base = -1) or checks the caller's, and writes every index word.
PackPlan plan_pack(const PackSource& source, int base, uint32_t* index, const Parallel& parallel,
                   Level level = highest_level());
// Writes payload and side table for a plan; `index` as plan_pack left it.
void write_pack(const PackSource& source, const PackPlan& plan, const PackResult& result,
                const Parallel& parallel, Level level = highest_level());

// Exact BF16, row-major [n, k] contiguous.
void unpack(const PackedView& w, uint16_t* out, const Parallel& parallel,
            Level level = highest_level());

// out[i, :] = row ids[i] of w. Returns the position of the first id outside [0, n), or -1; with
// such an id nothing else is promised of out.
int64_t gather(const PackedView& w, const int64_t* ids, int64_t count, uint16_t* out,
               const Parallel& parallel, Level level = highest_level());
int64_t gather(const PackedView& w, const int32_t* ids, int64_t count, uint16_t* out,
               const Parallel& parallel, Level level = highest_level());

// The reader's rules on the contents of a weight whose shapes have passed check_shape. The result
// is the violation of the earliest tile; `expert` (-1: not a stack) only tells its place.
Violation check(const PackedView& w, int64_t expert, const Parallel& parallel);
// "index: count must be 0..64 or 255: 0x80, tile (0, 3)"
std::string describe(const Violation& violation);

// y = x W^T + bias, y[i, j] = bf16(fma(acc, 2^-s, bias[j])).
struct GemmArgs {
  const uint16_t* x;  // [m, k] BF16, any row stride (elements), no alignment assumed
  int64_t x_row_stride;
  int64_t m;
  PackedView w;
  const uint16_t* bias;  // [n] BF16, or null
  uint16_t* y;           // [m, n], row stride below, every element written once
  int64_t y_row_stride;
  void* workspace;  // gemm_workspace_bytes() bytes, 64-byte aligned; may be null if that is 0
};
size_t gemm_workspace_bytes(int64_t m, int64_t n, int64_t k, Level level);
void gemm(const GemmArgs& args, Level level, const Parallel& parallel);

}  // namespace nf12::cpu
