// Tiles of a wave in its ring where x is not permuted, and decoded in the order of the matrix unit
// (WarpgroupFragments): of any eight neighbouring columns of a row a lane has one pair, two bytes
// of sign-mantissa and two codes of the eight in a word. So lanes pick what they need:
//
//   sign-mantissa   16 loads of two bytes. A row is four pieces of 16 bytes; piece c lies at
//                   c ^ (row / 2 % 4), and lanes of eight rows read from different banks.
//   codes           four loads of 16 bytes: the words of 32 columns of a row, the same for four
//                   lanes, which rotate them to their own pair. Piece c lies at c ^ (row / 4 % 2).
//
// Four operations a pair. The order in which lanes hold neighbours (MmaFragments) needs three and a
// half, and six loads of a tile.
#pragma once
#include "csrc/gemm/encoded_tile.hpp"
#include "csrc/gemm/stream/tiles.hpp"

namespace nf12 {

// A stage is named by its bytes from the ring's begin on.
template <bool permutes>
struct WaveTiles;

template <>
struct WaveTiles<true> {
  using Fragments = arch::MmaFragments;
  uint32_t signs, codes;
  DecodeConstants mask;

  NF12_DEVICE explicit WaveTiles(uint32_t ring) {
    signs = ring + 16 * arch::lane();
    codes = ring + kCodesOffset + 8 * arch::lane();
    for (uint32_t* value : {&signs, &codes}) arch::hold(*value);
  }
  NF12_DEVICE void copy(uint32_t stage, const uint8_t* tile) const {
    NF12_UNROLL
    for (int i = 0; i < 3; ++i) arch::copy16(signs + stage + 512 * i, tile + 512 * i);
  }
  NF12_DEVICE void decode(uint32_t stage, uint32_t (&w)[kLanePairs]) const {
    LaneTile tile;
    load_encoded(signs + stage, codes + stage, tile);
    decode_tile(tile, mask, w);
  }
};

template <>
struct WaveTiles<false> {
  using Fragments = arch::WarpgroupFragments;
  uint32_t to_signs, to_codes;  // where a lane's pieces go
  uint32_t signs, codes;        // and where it picks its pairs
  uint32_t rotation;            // of its codes
  uint32_t bias = kExponentBias;

  NF12_DEVICE explicit WaveTiles(uint32_t ring) {
    const uint32_t lane = arch::lane();
    to_signs = ring + 16 * ((lane & ~3u) | ((lane ^ lane / 8) & 3));
    to_codes = ring + kCodesOffset + 16 * (lane ^ (lane / 8 & 1));
    signs = ring + lane / 4 * 64 + lane / 8 * 16 + lane % 4 * 2;
    codes = ring + kCodesOffset + lane / 4 * 32 + lane / 16 * 16;
    rotation = (7 - lane % 4 * 4) & 31;
    for (uint32_t* value : {&to_signs, &to_codes, &signs, &codes, &rotation, &bias})
      arch::hold(*value);
  }

  NF12_DEVICE void copy(uint32_t stage, const uint8_t* tile) const {
    arch::copy16(to_signs + stage, tile);
    arch::copy16(to_signs + stage + 512, tile + 512);
    arch::copy16(to_codes + stage, tile + 1024);
  }

  // 32 columns: the fragments of two steps.
  template <int columns>
  NF12_DEVICE void decode(uint32_t stage, uint32_t (&w)[kLanePairs]) const {
    NF12_UNROLL
    for (uint32_t rows = 0; rows < 2; ++rows) {
      const arch::Words<4> words =
          arch::load_shared16(((codes + stage) ^ 16 * columns) + 256 * rows);
      NF12_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {  // eight columns
        const uint32_t step = 2 * columns + i / 2, half = i % 2;
        const uint32_t pair =
            arch::load_shared2(((signs + stage) ^ 16 * step) + 512 * rows + 8 * half);
        const uint32_t twice = arch::permute_bytes<0, 0, 1, 1>(pair, pair);
        w[4 * step + 2 * half + rows] =
            arch::merge_bits(kCodeMask, arch::rotate_left(words.w[i], rotation),
                             arch::and_or(twice, kSignMantissaMask, bias));
      }
    }
  }
};

}  // namespace nf12
