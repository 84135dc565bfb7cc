// Rows of a packed weight by id, as an embedding reads them.
#include <algorithm>
#include <cstring>

#include "csrc/cpu/cpu.hpp"
#include "csrc/cpu/huge_pages.hpp"
#include "csrc/cpu/parallel.hpp"
#include "csrc/cpu/unpack_kernels.hpp"
#include "csrc/format/escapes.hpp"
#include "csrc/format/scale.hpp"

namespace nf12::cpu {
namespace {

constexpr int64_t kGrainWeights = 1 << 16;

// Replaces the escapes of row `row` of a tile in out [64].
void patch_row(const PackedView& w, IndexWord word, int row, uint16_t* out) {
  if (!word.is_inside(w.quads)) return;
  const uint32_t* entries = w.escapes + int64_t{word.quad} * kEntriesPerQuad;
  const int shift = -scale_shift(w.base);
  if (word.is_raw()) {
    std::memcpy(out, entries + row * kTileColumns / 2, sizeof(uint16_t) * kTileColumns);
    scale_all(out, kTileColumns, shift);
    return;
  }
  for (uint32_t i = 0; i < word.count; ++i) {
    const Escape escape = Escape::from_bits(entries[i]);
    if (static_cast<int>(escape.position / kTileColumns) != row) continue;
    out[escape.position % kTileColumns] = scale_by(escape.value, shift);
  }
}

void gather_row(const UnpackKernels& kernels, const PackedView& w, int64_t id, uint16_t* out) {
  const int64_t r = id / kTileRows;
  const auto row = static_cast<int>(id % kTileRows);
  for (int64_t column = 0; column < w.k; column += kTileColumns) {
    const int64_t c = column / kTileColumns;
    const IndexWord word = IndexWord::from_bits(w.index_word(r, c));
    const bool is_whole = w.k - column >= kTileColumns;
    uint16_t edge[kTileColumns];
    uint16_t* target = is_whole ? out + column : edge;
    kernels.decode_row(w.tile(r, c), row, w.base, target);
    if (word.count != 0) patch_row(w, word, row, target);
    if (!is_whole) std::memcpy(out + column, edge, sizeof(uint16_t) * (w.k - column));
  }
}

template <typename Id>
int64_t gather_rows(const PackedView& w, const Id* ids, int64_t count, uint16_t* out,
                    const Parallel& parallel, Level level) {
  const Id* bad = std::find_if(ids, ids + count, [&](Id id) { return id < 0 || id >= w.n; });
  if (bad != ids + count) return bad - ids;
  const UnpackKernels& kernels = unpack_kernels(level);
  prefer_huge_pages(out, count * w.k * static_cast<int64_t>(sizeof(*out)));
  const int64_t grain = std::max<int64_t>(1, kGrainWeights / w.k);
  parallel_for(parallel, count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) gather_row(kernels, w, ids[i], out + i * w.k);
  });
  return -1;
}

}  // namespace

int64_t gather(const PackedView& w, const int64_t* ids, int64_t count, uint16_t* out,
               const Parallel& parallel, Level level) {
  return gather_rows(w, ids, count, out, parallel, level);
}

int64_t gather(const PackedView& w, const int32_t* ids, int64_t count, uint16_t* out,
               const Parallel& parallel, Level level) {
  return gather_rows(w, ids, count, out, parallel, level);
}

}  // namespace nf12::cpu
