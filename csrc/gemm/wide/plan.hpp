// The shared memory of one compiled wide kernel, and who does what in its block.
#pragma once
#include "csrc/format/escapes.hpp"
#include "csrc/gemm/tensor_map.hpp"
#include "csrc/gemm/wide/config.hpp"

namespace nf12 {

// A tile of outputs: 128 rows of W x `tokens`, in steps of 64 columns ("k-blocks").
inline constexpr int kWideRows = 128;
inline constexpr int kWideTileRows = kWideRows / kTileRows;  // a wave decodes one of them
inline constexpr int kWideColumns = kTileColumns;
inline constexpr int kWideGroups = 2;  // of four waves that multiply, 64 rows each
inline constexpr int kWideWaves = 12;  // registers go by fours of waves: the last one idles
inline constexpr int kWideThreads = kWideWaves * arch::kWave;
inline constexpr int kTokenWave = 8, kEncodedWave = 9, kListWave = 10;

inline constexpr int kFetchedEntries =
    32;  // of a list, one a lane; the rest of a longer one is rare

// A lane decodes rows l / 4 and l / 4 + 8 of a tile, columns 16 (l % 4) .. + 15: four pieces.
NF12_INLINE constexpr uint32_t piece_byte(int lane, int i) {
  return block_byte(lane / 4 + i / 2 * 8, lane % 4 * 16 + i % 2 * 8);
}
// Where the values of a raw tile have it.
NF12_INLINE constexpr uint32_t raw_byte(int lane, int i) {
  return lane / 4 * 128 + lane % 4 * 32 + i % 2 * 16 + i / 2 * 1024;
}
// The same as piece_byte from the address of its first one, which may lie anywhere at a multiple of
// 1,024.
NF12_INLINE constexpr uint32_t piece_from_first(uint32_t first, int i) {
  return (first ^ i % 2 * 16u) + i / 2 * 1024u;
}

template <WideConfig config>
struct WidePlan {
  static constexpr int kTokens = config.tokens;
  static constexpr int kSums = kTokens / 2;  // of a lane: 64 rows x tokens over 128 lanes
  static constexpr int kTokenStages = config.token_stages;
  static constexpr int kEncodedStages = config.encoded_stages;
  // Decoded k-blocks of a group: the one before and this one, multiplied; the next; one written.
  static constexpr int kBuffers = 4;
  static constexpr int kAhead = 2;

  static constexpr int kRowBytes = 2 * kWideColumns;
  static constexpr int kTokenBytes = kTokens * kRowBytes;  // of x, a k-block
  static constexpr int kBufferBytes = kWideRows / kWideGroups * kRowBytes;
  static constexpr int kDecodedTileBytes = kTileRows * kRowBytes;
  // Another block's sums go through stages of x: of each group a part.
  static constexpr int kSumParts = 4;
  static constexpr int kGroupFloats = kTokens * kWideRows / kWideGroups;
  static constexpr int kPartBytes = 4 * kGroupFloats / kSumParts;
  static_assert(kWideGroups * kPartBytes == kTokenBytes);
  // Of a stage: eight encoded tiles, the first entries of the list of each, the index words; 0
  // where nothing is to be done.
  static constexpr int kListBytes = 4 * kFetchedEntries;
  static constexpr int kLists = kWideTileRows * kTileBytes;
  static constexpr int kIndexWords = kLists + kWideTileRows * kListBytes;
  static constexpr int kEncodedBytes = kIndexWords + 128;

  // In bytes from a multiple of 1,024 on, which the permuted rows need.
  static constexpr int kTokenRing = 0;
  static constexpr int kDecoded = kTokenRing + kTokenStages * kTokenBytes;
  static constexpr int kEncoded = kDecoded + kWideGroups * kBuffers * kBufferBytes;
  // Barriers, one a stage: filled, and read by all who read.
  static constexpr int kTokensFilled = kEncoded + kEncodedStages * kEncodedBytes;
  static constexpr int kTokensRead = kTokensFilled + 8 * kTokenStages;
  static constexpr int kEncodedFilled = kTokensRead + 8 * kTokenStages;
  static constexpr int kEncodedRead = kEncodedFilled + 8 * kEncodedStages;
  static constexpr int kAlignment = 1024;
  static constexpr int kSharedBytes = kEncodedRead + 8 * kEncodedStages + kAlignment;

  static_assert(kDecoded % kAlignment == 0 && kEncoded % kAlignment == 0);
  static_assert(kTokenBytes % kAlignment == 0 && kBufferBytes % kAlignment == 0);
  static_assert(kEncodedBytes % 128 == 0 && kTokensFilled % 8 == 0);
  static_assert(kSharedBytes <= 227 * 1024);
};

}  // namespace nf12
