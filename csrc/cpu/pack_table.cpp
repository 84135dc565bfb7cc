#include "csrc/cpu/pack_table.hpp"

#include <cstring>

#include "csrc/cpu/pack_source.hpp"
#include "csrc/format/escapes.hpp"

namespace nf12::cpu {

// Four independent chains: one alone would wait for a multiplication on every word.
uint64_t hash_tile(const uint16_t* weights) {
  constexpr int kChains = 4;
  constexpr int kWords = kTileWeights * sizeof(uint16_t) / sizeof(uint64_t);
  uint64_t hash[kChains] = {1, 2, 3, 4};
  const auto mix = [](uint64_t state, uint64_t word) {
    state = (state ^ word) * 0x9E3779B97F4A7C15u;
    return state ^ state >> 29;
  };
  for (int i = 0; i < kWords; i += kChains) {
    uint64_t words[kChains];
    std::memcpy(words, weights + 4 * i, sizeof(words));
    for (int j = 0; j < kChains; ++j) hash[j] = mix(hash[j], words[j]);
  }
  return mix(mix(mix(hash[0], hash[1]), hash[2]), hash[3]);
}

int64_t RawTiles::find_or_add(int64_t tile, int64_t quad) {
  uint16_t weights[kTileWeights];
  source_tile(source_, tile).copy_to(weights, 0);
  const uint64_t hash = hash_tile(weights);
  for (auto [place, end] = by_hash_.equal_range(hash); place != end; ++place) {
    uint16_t earlier[kTileWeights];
    source_tile(source_, place->second.tile).copy_to(earlier, 0);
    if (std::memcmp(weights, earlier, sizeof(weights)) == 0) return place->second.quad;
  }
  by_hash_.emplace(hash, Place{tile, quad});
  return quad;
}

int64_t assign_quads(const PackSource& source, uint32_t* index) {
  const int64_t tiles = tile_grid(source).tiles();
  RawTiles raw_tiles(source);
  int64_t quads = 0;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (index[tile] == 0) continue;
    const bool is_raw = index[tile] > kMaxListed;
    const int64_t quad = is_raw ? raw_tiles.find_or_add(tile, quads) : quads;
    const IndexWord word{is_raw ? kRawCount : index[tile], static_cast<uint32_t>(quad)};
    if (quad == quads) quads += word.quads();
    if (quads > int64_t{kMaxQuads}) return quads;
    index[tile] = word.bits();
  }
  return quads;
}

}  // namespace nf12::cpu
