// The layout of the side table from the escapes of each tile. Host code; the device answers which
// raw tiles are equal.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/format/escapes.hpp"

namespace nf12 {

// For each raw tile the first one, in (expert, r, c) order, that holds the same weights. Tiles of
// one hash are compared with the first of them; those that differ from it, if any, form the next
// round. So equal hashes of different tiles cost time, never a wrong table.
class RawOwners {
 public:
  // counts: escapes of each tile; hashes: only those of raw tiles are looked at.
  RawOwners(const uint32_t* counts, const uint64_t* hashes, uint32_t tiles) {
    std::vector<std::pair<uint64_t, uint32_t>> raw;
    for (uint32_t tile = 0; tile < tiles; ++tile)
      if (counts[tile] > kMaxListed) raw.emplace_back(hashes[tile], tile);
    std::sort(raw.begin(), raw.end());
    if (!raw.empty()) owners_.resize(tiles);
    for (size_t i = 0; i < raw.size(); ++i) {
      if (i == 0 || raw[i].first != raw[i - 1].first) classes_.emplace_back();
      classes_.back().push_back(raw[i].second);
    }
    next_round();
  }

  // Pairs of tiles to compare, [length, 2]; empty: every owner is known.
  const std::vector<uint32_t>& pairs() const { return pairs_; }

  // differs: for each pair 0 if the tiles hold the same weights.
  void answer(const uint32_t* differs) {
    for (std::vector<uint32_t>& tiles : classes_) {
      std::vector<uint32_t> others;
      for (size_t i = 1; i < tiles.size(); ++i) {
        if (*differs++ == 0)
          owners_[tiles[i]] = tiles[0];
        else
          others.push_back(tiles[i]);
      }
      tiles = std::move(others);
    }
    next_round();
  }

  uint32_t of(uint32_t tile) const { return owners_[tile]; }

 private:
  void next_round() {
    pairs_.clear();
    for (const std::vector<uint32_t>& tiles : classes_) {
      if (tiles.empty()) continue;
      owners_[tiles[0]] = tiles[0];
      for (size_t i = 1; i < tiles.size(); ++i) {
        pairs_.push_back(tiles[i]);
        pairs_.push_back(tiles[0]);
      }
    }
  }

  std::vector<std::vector<uint32_t>> classes_;  // tiles of one hash without an owner, ascending
  std::vector<uint32_t> owners_;                // by tile
  std::vector<uint32_t> pairs_;
};

struct TablePlan {
  int64_t quads;                 // length of the table / 4; above kMaxQuads: it does not fit
  std::vector<uint32_t> owners;  // tiles that write a raw table
};

// Turns the escapes of each tile into its index word; stops where the table gets too long.
inline TablePlan assign_words(const RawOwners& raw, uint32_t* index, uint32_t tiles) {
  TablePlan plan = {};
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    if (index[tile] == 0) continue;
    IndexWord word{index[tile], static_cast<uint32_t>(plan.quads)};
    const bool is_raw = index[tile] > kMaxListed;
    if (is_raw) word.count = kRawCount;
    if (is_raw && raw.of(tile) != tile) {
      word.quad = IndexWord::from_bits(index[raw.of(tile)]).quad;
    } else {
      if (is_raw) plan.owners.push_back(tile);
      plan.quads += word.quads();
      if (plan.quads > int64_t{kMaxQuads}) return plan;
    }
    index[tile] = word.bits();
  }
  return plan;
}

}  // namespace nf12
