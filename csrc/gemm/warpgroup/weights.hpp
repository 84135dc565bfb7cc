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
#include "csrc/arch/hopper.hpp"
#include "csrc/gemm/stream/tiles.hpp"

namespace nf12 {

// In words of the block's shared memory: the place of a stage, a multiple of 16.
template <bool permutes>
struct WaveTiles;

template <>
struct WaveTiles<true> {
  using Fragments = arch::MmaFragments;
  arch::Shared<uint32_t> shared;
  DecodeConstants mask;

  NF12_DEVICE explicit WaveTiles(const arch::Shared<uint32_t>& shared) : shared(shared) {}
  NF12_DEVICE void copy(bool wanted, int stage, const uint8_t* tile) const {
    copy_tile(wanted, shared, stage, tile);
  }
  NF12_DEVICE void decode(int stage, uint32_t (&w)[kLanePairs]) const {
    decode_tile(read_tile(shared, stage), mask, w);
  }
};

template <>
struct WaveTiles<false> {
  using Fragments = arch::WarpgroupFragments;
  uint32_t to_signs, to_codes;  // addresses in a stage at word 0: where a lane's pieces go
  uint32_t signs, codes;        // and where it picks its pairs
  uint32_t rotation;            // of its codes

  NF12_DEVICE explicit WaveTiles(const arch::Shared<uint32_t>& shared) {
    const uint32_t lane = arch::lane(), base = arch::shared_address(shared, 0);
    to_signs = base + 16 * ((lane & ~3u) | ((lane ^ lane / 8) & 3));
    to_codes = base + kCodesOffset + 16 * (lane ^ (lane / 8 & 1));
    signs = base + lane / 4 * 64 + lane / 8 * 16 + lane % 4 * 2;
    codes = base + kCodesOffset + lane / 4 * 32 + lane / 16 * 16;
    rotation = (7 - lane % 4 * 4) & 31;
    for (uint32_t* value : {&to_signs, &to_codes, &signs, &codes, &rotation}) arch::hold(*value);
  }

  NF12_DEVICE void copy(bool wanted, int stage, const uint8_t* tile) const {
    if (!wanted) return;
    const uint8_t* from = tile + 16 * arch::lane();
    arch::copy16(to_signs + 4 * stage, from);
    arch::copy16(to_signs + 4 * stage + 512, from + 512);
    arch::copy16(to_codes + 4 * stage, from + 1024);
  }

  NF12_DEVICE void decode(int stage, uint32_t (&w)[kLanePairs]) const {
    NF12_UNROLL
    for (uint32_t part = 0; part < 4; ++part) {  // 32 columns of eight rows
      const uint32_t columns = part / 2, rows = part % 2;
      const arch::Words<4> words =
          arch::load_shared16(((codes + 4 * stage) ^ 16 * columns) + 256 * rows);
      NF12_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {  // eight columns
        const uint32_t step = 2 * columns + i / 2, half = i % 2;
        const uint32_t pair =
            arch::load_shared2(((signs + 4 * stage) ^ 16 * step) + 512 * rows + 8 * half);
        const uint32_t twice = arch::permute_bytes<0, 0, 1, 1>(pair, pair);
        w[4 * step + 2 * half + rows] =
            arch::merge_bits(kCodeMask, arch::rotate_left(words.w[i], rotation),
                             arch::and_or(twice, kSignMantissaMask, kExponentBias));
      }
    }
  }
};

}  // namespace nf12
