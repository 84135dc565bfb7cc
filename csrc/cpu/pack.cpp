// Packing in two calls. The plan surveys all exponents, chooses the base and lays out the side
// table; the writer encodes. Bytes depend on the weights alone, never on the number of threads.
#include <bit>
#include <cstring>
#include <mutex>
#include <vector>

#include "csrc/cpu/cpu.hpp"
#include "csrc/cpu/huge_pages.hpp"
#include "csrc/cpu/pack_base.hpp"
#include "csrc/cpu/pack_kernels.hpp"
#include "csrc/cpu/pack_source.hpp"
#include "csrc/cpu/pack_table.hpp"
#include "csrc/cpu/parallel.hpp"
#include "csrc/format/escapes.hpp"
#include "csrc/format/scale.hpp"

namespace nf12::cpu {
namespace {

// Of the sample that the first guess of the base is taken from. At the true base one survey counts
// both exponents and escapes; a wrong guess costs a second one, never a different result.
constexpr int64_t kSampleStep = 32;

// Padding with this weight encodes to zero bits and is no escape.
uint16_t neutral_weight(int base) { return static_cast<uint16_t>(base << 7); }

int survey_tile(const PackKernels& kernels, const SourceTile& tile, int base,
                ExponentSurvey* survey) {
  if (tile.is_full()) return kernels.survey_tile(tile.w, tile.row_stride, base, survey);
  uint16_t padded[kTileWeights];
  tile.copy_to(padded, neutral_weight(base));
  const int escapes = kernels.survey_tile(padded, kTileColumns, base, survey);
  survey->counts[base] -= kTileWeights - tile.rows * tile.columns;
  return escapes;
}

// Surveys every step-th tile; with an index, leaves each tile's number of escapes there.
ExponentSurvey survey_tiles(const PackSource& source, int64_t step, int base, uint32_t* index,
                            const PackKernels& kernels, const Parallel& parallel) {
  const TileGrid grid = tile_grid(source);
  ExponentSurvey total;
  std::mutex total_mutex;
  const int64_t samples = (grid.tiles() + step - 1) / step;
  parallel_for(parallel, samples, kGrainTiles, [&](int64_t begin, int64_t end) {
    ExponentSurvey part;
    for (int64_t sample = begin; sample < end; ++sample) {
      const int64_t tile = sample * step;
      const int escapes = survey_tile(kernels, source_tile(source, tile), base, &part);
      if (index != nullptr) index[tile] = static_cast<uint32_t>(escapes);
    }
    const std::lock_guard lock(total_mutex);
    for (int i = 0; i < 256; ++i) total.counts[i] += part.counts[i];
    total.subnormal_bits |= part.subnormal_bits;
  });
  return total;
}

// Writes the listed escapes of one tile, and zeros to the end of its last quad. Weights that
// changed since the plan (a mapped file, say) cannot make it write past the place they were given.
void write_list(const SourceTile& tile, const uint64_t* escape_columns, IndexWord word, int shift,
                uint32_t* escapes) {
  uint32_t* entry = escapes + int64_t{word.quad} * kEntriesPerQuad;
  uint32_t* const last = entry + word.count;
  uint32_t* const end = entry + int64_t{word.quads()} * kEntriesPerQuad;
  for (int row = 0; row < tile.rows; ++row) {
    for (uint64_t left = escape_columns[row]; left != 0 && entry < last; left &= left - 1) {
      const int column = std::countr_zero(left);
      const uint16_t bits = tile.w[row * tile.row_stride + column];
      const auto position = static_cast<uint32_t>(kTileColumns * row + column);
      *entry++ = Escape{position, scale_by(bits, shift)}.bits();
    }
  }
  std::fill(entry, end, 0u);
}

void write_raw(const SourceTile& tile, IndexWord word, int shift, uint32_t* escapes) {
  uint16_t values[kTileWeights];
  tile.copy_to(values, 0);
  scale_all(values, kTileWeights, shift);
  std::memcpy(escapes + int64_t{word.quad} * kEntriesPerQuad, values, sizeof(values));
}

void write_tile(const PackKernels& kernels, const SourceTile& tile, IndexWord word, int base,
                uint8_t* payload, uint32_t* escapes) {
  if (word.is_raw()) {
    std::memset(payload, 0, kTileBytes);
    return;
  }
  uint64_t escape_columns[kTileRows];
  if (tile.is_full()) {
    kernels.encode_tile(tile.w, tile.row_stride, base, payload, escape_columns);
  } else {
    uint16_t padded[kTileWeights];
    tile.copy_to(padded, neutral_weight(base));
    kernels.encode_tile(padded, kTileColumns, base, payload, escape_columns);
  }
  if (word.count != 0) write_list(tile, escape_columns, word, scale_shift(base), escapes);
}

// The first tile of each raw content: those are written once, whoever shares them.
std::vector<int64_t> raw_owners(const uint32_t* index, int64_t tiles) {
  std::vector<int64_t> owners;
  uint32_t quads = 0;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const IndexWord word = IndexWord::from_bits(index[tile]);
    if (word.count == 0 || word.quad < quads) continue;
    if (word.is_raw()) owners.push_back(tile);
    quads = word.quad + word.quads();
  }
  return owners;
}

}  // namespace

PackPlan plan_pack(const PackSource& source, int base, uint32_t* index, const Parallel& parallel,
                   Level level) {
  const PackKernels& kernels = pack_kernels(level);
  int guess = base;
  if (base < 0) {
    guess =
        choose_base(survey_tiles(source, kSampleStep, kNeutralBase, nullptr, kernels, parallel));
  }
  const ExponentSurvey survey = survey_tiles(source, 1, guess, index, kernels, parallel);
  if (base < 0) base = choose_base(survey);
  if (!base_keeps_bits(survey, base)) return {PackStatus::kBaseLosesBits, base, 0};
  if (base != guess) survey_tiles(source, 1, base, index, kernels, parallel);
  const int64_t quads = assign_quads(source, index);
  const bool fits = quads <= int64_t{kMaxQuads};
  return {fits ? PackStatus::kOk : PackStatus::kTableTooLarge, base, quads};
}

void write_pack(const PackSource& source, const PackPlan& plan, const PackResult& result,
                const Parallel& parallel, Level level) {
  const PackKernels& kernels = pack_kernels(level);
  const TileGrid grid = tile_grid(source);
  const auto word = [&](int64_t tile) { return IndexWord::from_bits(result.index[tile]); };
  prefer_huge_pages(result.payload, grid.tiles() * kTileBytes);
  parallel_for(parallel, grid.tiles(), kGrainTiles, [&](int64_t begin, int64_t end) {
    grid.for_each(begin, end, [&](int64_t tile, int64_t x, int64_t r, int64_t c) {
      write_tile(kernels, source_tile(source, x, r, c), word(tile), plan.base,
                 result.payload + tile * kTileBytes, result.escapes);
    });
  });
  const std::vector<int64_t> owners = raw_owners(result.index, grid.tiles());
  const auto owner_count = static_cast<int64_t>(owners.size());
  parallel_for(parallel, owner_count, kGrainTiles, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      write_raw(source_tile(source, owners[i]), word(owners[i]), scale_shift(plan.base),
                result.escapes);
    }
  });
}

}  // namespace nf12::cpu
