// Unpacking: decode each tile where it belongs, then put its escapes in. Integer arithmetic only,
// so neither rounding modes nor flush-to-zero reach it.
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

// Replaces the escapes of a decoded tile out [16, 64]. A word that reaches outside the table is
// skipped: unchecked input gives wrong weights, never a wild read.
void patch_tile(const PackedView& w, IndexWord word, uint16_t* out, int64_t out_row_stride) {
  if (!word.is_inside(w.quads)) return;
  const uint32_t* entries = w.escapes + int64_t{word.quad} * kEntriesPerQuad;
  const int shift = -scale_shift(w.base);
  if (word.is_raw()) {
    uint16_t values[kTileWeights];
    std::memcpy(values, entries, sizeof(values));
    scale_all(values, kTileWeights, shift);
    for (int row = 0; row < kTileRows; ++row) {
      std::memcpy(out + row * out_row_stride, values + row * kTileColumns,
                  sizeof(uint16_t) * kTileColumns);
    }
    return;
  }
  for (uint32_t i = 0; i < word.count; ++i) {
    const Escape escape = Escape::from_bits(entries[i]);
    const int64_t row = escape.position / kTileColumns;
    out[row * out_row_stride + escape.position % kTileColumns] = scale_by(escape.value, shift);
  }
}

void unpack_tile(const UnpackKernels& kernels, const PackedView& w, int64_t r, int64_t c,
                 uint16_t* out) {
  const auto rows = static_cast<int>(std::min<int64_t>(kTileRows, w.n - r * kTileRows));
  const auto columns = static_cast<int>(std::min<int64_t>(kTileColumns, w.k - c * kTileColumns));
  const IndexWord word = IndexWord::from_bits(w.index_word(r, c));
  uint16_t* target = out + r * kTileRows * w.k + c * kTileColumns;
  if (rows == kTileRows && columns == kTileColumns) {
    kernels.decode_tile(w.tile(r, c), w.base, target, w.k);
    if (word.count != 0) patch_tile(w, word, target, w.k);
    return;
  }
  uint16_t decoded[kTileWeights];
  kernels.decode_tile(w.tile(r, c), w.base, decoded, kTileColumns);
  if (word.count != 0) patch_tile(w, word, decoded, kTileColumns);
  for (int row = 0; row < rows; ++row) {
    std::memcpy(target + row * w.k, decoded + row * kTileColumns, sizeof(uint16_t) * columns);
  }
}

}  // namespace

void unpack(const PackedView& w, uint16_t* out, const Parallel& parallel, Level level) {
  const UnpackKernels& kernels = unpack_kernels(level);
  prefer_huge_pages(out, w.n * w.k * static_cast<int64_t>(sizeof(*out)));
  const TileGrid grid{1, tile_rows(w.n), tile_columns(w.k)};
  parallel_for(parallel, grid.tiles(), kGrainTiles, [&](int64_t begin, int64_t end) {
    grid.for_each(begin, end, [&](int64_t, int64_t, int64_t r, int64_t c) {
      unpack_tile(kernels, w, r, c, out);
    });
  });
}

}  // namespace nf12::cpu
