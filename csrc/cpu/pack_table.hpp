// Where each tile's escapes go in the side table.
#pragma once
#include <cstdint>
#include <unordered_map>

#include "csrc/cpu/cpu.hpp"

namespace nf12::cpu {

// Of a tile's 1,024 weights. Equal hashes only make a comparison worth its time.
uint64_t hash_tile(const uint16_t* weights);

// The raw tiles met so far, by content. Padding counts as +0, as it does in the table.
class RawTiles {
 public:
  explicit RawTiles(const PackSource& source) : source_(source) {}

  // The quad of an earlier tile that equals `tile`; if there is none, remembers `tile` at `quad`
  // and returns `quad`.
  int64_t find_or_add(int64_t tile, int64_t quad);

 private:
  struct Place {
    int64_t tile, quad;
  };
  PackSource source_;
  std::unordered_multimap<uint64_t, Place> by_hash_;
};

// Turns the number of escapes of each tile into its index word, in (expert, r, c) order. Returns
// the length of the table in quads; stops early once that exceeds kMaxQuads.
int64_t assign_quads(const PackSource& source, uint32_t* index);

}  // namespace nf12::cpu
