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
  static constexpr int kSums = kTokens / 2;  // of a lane

  // The waves that multiply come first; then one that copies x and those that permute it, in a
  // warpgroup of their own for the sake of the registers, which go by warpgroups.
  static constexpr int kWaves = kGroups * kGroupTileRows;
  static constexpr int kPermuters = kTokens / 16 % 3 == 0 || kTokens > 64 ? 3 : 2;
  static constexpr int kThreads = (kWaves + kGroupTileRows) * arch::kWave;
  static constexpr int kLanes = kWaves * arch::kWave;  // that multiply, and store outputs

  // A launch gives each wave the same: what one side gives up the other may take. With 32 tokens
  // nobody needs more than that.
  static constexpr bool kTradesRegisters = kTokens > 32;
  static constexpr int kLaunched = 65536 / kThreads / 8 * 8;
  static constexpr int kTokenRegisters = kTokens <= 80 ? 64 : kGroups == 4 ? 32 : 56;
  static constexpr int kRegisters =
      (kThreads * kLaunched - (kThreads - kLanes) * kTokenRegisters) / kLanes / 8 * 8;

  // What a wave permutes at once: this many words of four pieces a lane, as many times.
  static constexpr int kPieceWords = kTokenRegisters < 56 ? 2 : 4;
  static constexpr int kTogether = kTokens == 64 || kTokens == 80 ? 2 : 1;

  // x in the ring: rows of 64 columns as the matrix unit reads them (tensor_map.hpp). In words of
  // the block's shared memory, which starts at a multiple of 1,024 bytes.
  static constexpr int kColumnWords = kTokens * kTileColumns / 2;
  static constexpr int kTileWords = kTileBytes / 4;
  static constexpr int kRingWords = kStages * kTileWords;  // of a wave
  static constexpr int kTokenRing = 0;
  static constexpr int kRings = kTokenRing + kColumns * kColumnWords;
  static constexpr int kRest = kRings + kWaves * kRingWords;
  // Barriers, one a column: copied, permuted, and read by all; then one of all sums.
  static constexpr int kCopied = kRest + kWaves * kRestWords;
  static constexpr int kPermuted = kCopied + 2 * kColumns;
  static constexpr int kRead = kPermuted + 2 * kColumns;
  static constexpr int kGathered = kRead + 2 * kColumns;
  static constexpr int kPlane = (kGathered + 2 + 3) / 4 * 4;

  // The sums of a tile row that one block has, in the order of the fragments: word
  // 4 (32 i + lane) + j is sum 4 i + j of a lane. They travel through the ring of the wave, as many
  // at a time as it holds.
  static constexpr int kSegmentWords = kTileRows * kTokens;
  static constexpr int kParts = (kSegmentWords + kRingWords - 1) / kRingWords;
  static constexpr int kPartSums = kSums / kParts;
  static constexpr int kPartWords = kSegmentWords / kParts;

  // Of the tile rows that each of `blocks` adds up, a segment of every block.
  NF12_INLINE static constexpr int shared_bytes(int rows, int blocks) {
    return 4 * (kPlane + (rows + blocks - 1) / blocks * blocks * kSegmentWords);
  }

  static_assert(kTokens % 16 == 0 && kSums % (4 * kParts) == 0 && kColumnWords % 256 == 0);
};

}  // namespace nf12
