// Pack, second pass: the escapes of each tile at the chosen base, and for tiles that will be raw a
// hash of what they hold, so that the host can find equal ones; compare then makes sure of them.
#pragma once
#include "csrc/format/escapes.hpp"
#include "csrc/pack/params.hpp"
#include "csrc/pack/wave_sum.hpp"

namespace nf12 {

// Padding with this pair encodes to zero bits and holds no escape.
NF12_DEVICE uint32_t neutral_pair(int base) { return static_cast<uint32_t>(base) * 0x00800080u; }

// Bit i of the result: weight i of the piece lies outside the window.
NF12_DEVICE uint32_t escapes_of(const uint32_t* piece, int base) {
  uint32_t mask = 0;
  NF12_UNROLL
  for (int i = 0; i < kPieceColumns; ++i)
    mask |= (in_window(half_of(piece[i / 2], i), base) ? 0u : 1u) << i;
  return mask;
}

// Two sums over lanes of 32 bits each, every lane's weights mixed with its place.
NF12_DEVICE void store_hash(const uint32_t (&w)[kLaneWords], uint32_t* hash) {
  uint32_t a = static_cast<uint32_t>(arch::lane()) + 1, b = ~a;
  NF12_UNROLL
  for (const uint32_t pair : w) {
    a = (a ^ pair) * 0x9E3779B1u;
    a ^= a >> 15;
    b = (b ^ pair) * 0x85EBCA77u;
    b ^= b >> 13;
  }
  const uint32_t low = wave_total(a);
  const uint32_t high = wave_total(b * 0xC2B2AE3Du);
  if (arch::lane() == 0) arch::store_words<2>(hash, {{low, high}});
}

template <int alignment>
NF12_DEVICE void count_escapes(const PackParams& p) {
  const uint32_t first = arch::block_x() * kPackWaves + arch::wave();
  TilePlace place = TilePlace::of(p.steps, first);
  NF12_NO_UNROLL
  for (; place.tile < p.steps.tiles; place.advance(p.steps)) {
    uint32_t w[kLaneWords];
    load_pieces<alignment>(p.source, place, neutral_pair(p.base), w);
    uint32_t count = 0;
    NF12_UNROLL
    for (int s = 0; s < kPieces; ++s)
      count += static_cast<uint32_t>(std::popcount(escapes_of(&w[s * kPieceWords], p.base)));
    const uint32_t total = wave_sum<6>(count).total;
    if (arch::lane() == 0) arch::store_words<1>(p.index + place.tile, {{total}});
    if (total <= kMaxListed) continue;
    load_pieces<alignment>(p.source, place, 0, w);  // padding is +0 in a raw tile
    store_hash(w, p.hashes + int64_t{place.tile} * 2);
  }
}

// Whether the two tiles of each pair hold the same weights.
NF12_DEVICE void compare_tiles(const PackParams& p) {
  NF12_NO_UNROLL
  for (uint32_t i = arch::block_x() * kPackWaves + arch::wave(); i < p.list_length;
       i += p.list_waves) {
    const arch::Words<2> pair = arch::uniform_load<2>(p.list + int64_t{i} * 2, 0);
    uint32_t one[kLaneWords], other[kLaneWords];
    load_pieces<2>(p.source, TilePlace::of(p.steps, pair.w[0]), 0, one);
    load_pieces<2>(p.source, TilePlace::of(p.steps, pair.w[1]), 0, other);
    uint32_t difference = 0;
    NF12_UNROLL
    for (int j = 0; j < kLaneWords; ++j) difference |= one[j] ^ other[j];
    const uint32_t differs = arch::ballot(difference != 0) != 0;
    if (arch::lane() == 0) arch::store_words<1>(p.differs + i, {{differs}});
  }
}

}  // namespace nf12
