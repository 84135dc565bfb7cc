// The shared memory and the registers of one compiled warpgroup kernel, and who does what in its
// block.
#pragma once
#include "csrc/gemm/stream/patch.hpp"
#include "csrc/gemm/warpgroup/config.hpp"

namespace nf12 {

inline constexpr int kGroupTileRows = 4;  // of a warpgroup: a tile row a wave

template <WarpgroupConfig config>
struct WarpgroupPlan {
  static constexpr int kTokens = config.tokens;
  static constexpr int kGroups = config.groups;
  static constexpr int kStages = config.stages;
  static constexpr int kColumns = config.columns;
  static constexpr bool kPermutes = config.permutes;
  static constexpr int kSums = kTokens / 2;  // of a lane

  // The waves that multiply come first; then, where x is permuted, one that copies it and those
  // that permute it, in a warpgroup of their own for the sake of the registers, which go by
  // warpgroups.
  static constexpr int kWaves = kGroups * kGroupTileRows;
  static constexpr int kPermuters = kTokens / 16 % 3 == 0 || kTokens > 64 ? 3 : 2;
  static constexpr int kThreads = (kWaves + (kPermutes ? kGroupTileRows : 0)) * arch::kWave;
  static constexpr int kLanes = kWaves * arch::kWave;  // that multiply, and store outputs

  // Sets of fragments. With two a tile is decoded while the one before is multiplied; with one,
  // half of it while the other half of that is.
  static constexpr int kSets = kPermutes ? 2 : 1;

  // A launch gives each wave the same: what one side gives up the other may take. With 32 tokens
  // nobody needs more than that.
  static constexpr bool kTradesRegisters = kPermutes && kTokens > 32;
  static constexpr int kLaunched = 65536 / kThreads / 8 * 8;
  static constexpr int kTokenRegisters = kTokens <= 80 ? 64 : 32;
  static constexpr int kRegisters =
      (kThreads * kLaunched - (kThreads - kLanes) * kTokenRegisters) / kLanes / 8 * 8;

  // What a wave permutes at once: this many words of four pieces a lane, as many times.
  static constexpr int kPieceWords = kTokenRegisters < 64 ? 2 : 4;
  static constexpr int kTogether = kTokens == 64 || kTokens == 80 ? 2 : 1;

  // In words of the block's shared memory.
  static constexpr int kTileWords = kTileBytes / 4;
  static constexpr int kRingWords = kStages * kTileWords;  // of a wave
  static constexpr int kRings = 0;
  static constexpr int kRest = kRings + kWaves * kRingWords;
  // Barriers, one a column: copied, ready to be multiplied, and read by all; then one of all sums.
  static constexpr int kCopied = kRest + kWaves * kRestWords;
  static constexpr int kReady = kCopied + (kPermutes ? 2 * kColumns : 0);
  static constexpr int kRead = kReady + 2 * kColumns;
  static constexpr int kGathered = kRead + 2 * kColumns;

  // x in the ring: rows of 64 columns as the matrix unit reads them (tensor_map.hpp), from a
  // multiple of 1,024 bytes on, as the block's shared memory is.
  static constexpr int kColumnWords = kTokens * kTileColumns / 2;
  static constexpr int kTokenRing = (kGathered + 2 + 255) / 256 * 256;
  static constexpr int kPastTokens = kTokenRing + kColumns * kColumnWords;

  // The sums of a cluster lie past x, or where many tokens leave no room there in its place, once
  // no block reads it any more.
  static constexpr bool kSumsReplaceTokens = !kPermutes;
  static constexpr int kPlane = kSumsReplaceTokens ? kTokenRing : kPastTokens;

  // The sums of a tile row that one block has, in the order of the fragments: word
  // 4 (32 i + lane) + j is sum 4 i + j of a lane. They travel through the ring of the wave, as many
  // at a time as it holds.
  static constexpr int kSegmentWords = kTileRows * kTokens;
  static constexpr int kParts = (kSegmentWords + kRingWords - 1) / kRingWords;
  static constexpr int kPartSums = kSums / kParts;
  static constexpr int kPartWords = kSegmentWords / kParts;

  // Of the tile rows that each of `blocks` adds up, a segment of every block.
  NF12_INLINE static constexpr int shared_bytes(int rows, int blocks) {
    const int end = kPlane + (rows + blocks - 1) / blocks * blocks * kSegmentWords;
    return 4 * (end > kPastTokens ? end : kPastTokens);
  }

  static_assert(kPermutes || kColumns == 4 || kColumns == 8);  // ring_shift
  static_assert(kTokens % 16 == 0 && kSums % (4 * kParts) == 0 && kColumnWords % 256 == 0);
};

}  // namespace nf12
