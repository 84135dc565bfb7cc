// What the packing kernels are given, by value in the kernel arguments. They run in this order, the
// host deciding in between (launch.hpp); each uses the members above its name.
#pragma once
#include "csrc/format/pieces.hpp"

namespace nf12 {

struct PackParams {
  DenseStack<const uint16_t> source;  // [experts, n, k]
  TileSteps steps;
  // survey: adds to zeroed memory. Padding counts as zeros, the host takes it off.
  uint64_t* exponents;       // [256] weights with each biased exponent
  uint32_t* subnormal_bits;  // [1] OR of the mantissas of all subnormals
  // count
  int32_t base;
  uint32_t* index;   // [tiles] escapes of each tile; from encode on its index word
  uint32_t* hashes;  // [tiles, 2] of the content of tiles with more than kMaxListed escapes
  // compare, raw: a list that the host uploads
  const uint32_t* list;  // compare: [length, 2] tiles; raw: [length] tiles, the owners of raw quads
  uint32_t list_length;
  uint32_t list_waves;  // of the grid of compare or raw
  uint32_t* differs;    // compare: [length] 0 where both tiles hold the same weights, else 1
  // encode, raw
  uint8_t* payload;   // [tiles, 1536]
  uint32_t* escapes;  // [quads, 4]
};

inline constexpr int kPackWaves = 8;

}  // namespace nf12
