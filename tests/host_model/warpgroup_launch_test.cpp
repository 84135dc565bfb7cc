// How the warpgroup kernels' work is shared out, in which order x lies for them, and that neither
// memory nor registers are more than there are.
#define NF12_HOST_FRAGMENTS MmaFragments
#include "csrc/gemm/warpgroup/launch.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/cpp/codec.hpp"
#include "tests/cpp/expect.hpp"

namespace nf12::test {
namespace {

constexpr int kCardSharedBytes = 227 * 1024;  // of a block, sm_90
// Clusters that an H200 runs at once, by their blocks.
constexpr ClusterCounts kH200 = {0, 132, 66, 39, 30, 22, 17, 15, 15};

template <typename Body>
void with_form(int tokens, const Body& body) {
  with_tokens<kWarpgroupTokens>(tokens, [&]<int t>(std::integral_constant<int, t>) {
    EXPECT(t == tokens, "no form of ", tokens, " tokens");
    body.template operator()<warpgroup_config(t)>();
  });
}

std::string name_of(int tokens, int64_t n, int64_t k, const ClusterShape& shape) {
  return join(tokens, " tokens, n ", n, ", k ", k, ": rows ", shape.rows, ", turns ", shape.turns,
              ", blocks ", shape.blocks);
}

// A group has rows of its own or a turn at those of others, a block a column for each turn; and the
// ring of x has room for them.
void expect_within_limits(int tokens, int64_t n, int64_t k, const ClusterCounts& counts,
                          int most_shared_bytes) {
  const WarpgroupConfig config = warpgroup_config(tokens);
  const PackedView weight = weight_of(n, k);
  const ClusterShape shape = warpgroup_shape(config, weight, 1, counts, most_shared_bytes);
  const std::string what = name_of(tokens, n, k, shape);
  const int columns = static_cast<int>(tile_columns(k));
  EXPECT(shape.rows >= (most_shared_bytes >= kCardSharedBytes), what);
  if (shape.rows == 0) return;
  EXPECT(shape.turns >= 1 && shape.blocks >= 1, what);
  const int row_groups = (shape.rows + kGroupTileRows - 1) / kGroupTileRows;
  EXPECT(shape.rows <= kGroupTileRows * config.groups && row_groups * shape.turns <= config.groups,
         what);
  EXPECT(shape.turns <= (config.permutes ? config.columns - 1 : config.columns / 2), what);
  int fewest = columns;
  for (int block = 0; block < shape.blocks; ++block)
    fewest =
        std::min(fewest, columns * (block + 1) / shape.blocks - columns * block / shape.blocks);
  EXPECT(shape.turns <= fewest, what, ", a block has ", fewest, " columns");
  EXPECT(shape.blocks <= arch::kMostClusterBlocks && counts[shape.blocks] > 0, what);
  const int bytes = warpgroup_shared_bytes(tokens, shape);
  EXPECT(bytes <= most_shared_bytes, bytes, " bytes, ", what);

  WarpgroupParams p = {};
  p.cluster.gemm.weight = weight;
  p.cluster.gemm.m = tokens;
  const Grid grid = warpgroup_grid(config, p, shape);
  const int64_t clusters = grid.x / shape.blocks;
  with_form(tokens, [&]<WarpgroupConfig form>() {
    EXPECT(grid.threads == WarpgroupPlan<form>::kThreads, what, ": ", grid.threads, " threads");
  });
  EXPECT(grid.x % shape.blocks == 0 && (clusters - 1) * shape.rows < tile_rows(n) &&
             clusters * shape.rows >= tile_rows(n),
         what, ": ", grid.x, " blocks");
}

TEST(every_choice_of_a_shape_is_within_the_limits) {
  ClusterCounts no_clusters = {}, one = {}, few = {0, 20, 9, 6, 4, 3, 2, 0, 1};
  no_clusters[1] = 132;
  one.fill(1);
  one[0] = 0;
  ClusterCounts no_single = kH200;
  no_single[1] = 0;
  for (const ClusterCounts& counts : {kH200, no_clusters, one, few, no_single})
    for (const int tokens : kWarpgroupTokens)
      for (const int64_t n :
           {1, 16, 17, 100, 1000, 2112, 4096, 4864, 11008, 28672, 151936, 1 << 20})
        for (const int64_t k :
             {64, 128, 192, 448, 512, 576, 896, 1024, 4096, 14336, 25600, 1 << 20})
          for (const int most : {kCardSharedBytes, kCardSharedBytes - 40 * 1024}) {
            if (counts[1] == 0 && k < 128) continue;  // a block each has no column
            expect_within_limits(tokens, n, k, counts, most);
          }
}

TEST(no_shape_without_memory_or_clusters) {
  const PackedView weight = weight_of(4096, 4096);
  for (const int tokens : kWarpgroupTokens) {
    const WarpgroupConfig config = warpgroup_config(tokens);
    EXPECT(warpgroup_shape(config, weight, 1, kH200, 48 * 1024).rows == 0, tokens, " tokens");
    EXPECT(warpgroup_shape(config, weight, 1, {}, kCardSharedBytes).rows == 0, tokens, " tokens");
  }
}

// What an H200 found fastest of all shapes, or within 2 % of it (2026-11-30).
TEST(shapes_as_they_were_measured) {
  const struct {
    int tokens;
    int64_t k, n;
    ClusterShape wanted;
  } cases[] = {
      {64, 4096, 28672, {14, 1, 1}}, {64, 25600, 5120, {15, 1, 5}}, {64, 8192, 8192, {8, 2, 2}},
      {64, 4096, 14336, {14, 1, 2}}, {128, 4096, 4096, {4, 4, 2}},  {128, 4096, 28672, {14, 1, 1}},
      {128, 896, 4864, {3, 4, 1}},   {192, 4096, 4096, {4, 2, 2}},  {256, 4096, 4096, {4, 2, 2}}};
  for (const auto& [tokens, k, n, wanted] : cases) {
    const ClusterShape shape =
        warpgroup_shape(warpgroup_config(tokens), weight_of(n, k), 1, kH200, kCardSharedBytes);
    EXPECT(
        shape.rows == wanted.rows && shape.turns == wanted.turns && shape.blocks == wanted.blocks,
        name_of(tokens, n, k, shape), " instead of ", wanted.rows, ", ", wanted.turns, ", ",
        wanted.blocks);
  }
}

TEST(what_the_kernels_take) {
  PackedView w = weight_of(100, 192);
  EXPECT(warpgroup_takes(w, 2, 192) && !warpgroup_takes(w, 2, 184), "rows of x that overlap");
  EXPECT(warpgroup_takes(w, 1, 0), "of one row the stride does not matter");
  w.k = 200;
  EXPECT(!warpgroup_takes(w, 1, 200), "k off a multiple of 64");
}

// A launch gives each wave the same registers, of 65,536; what those that bring x give up is what
// the others take.
TEST(registers_that_are_taken_were_given) {
  for (const int tokens : kWarpgroupTokens)
    with_form(tokens, [&]<WarpgroupConfig config>() {
      using Plan = WarpgroupPlan<config>;
      const auto is_a_size = [](int registers) {
        return registers % 8 == 0 && registers >= 24 && registers <= 256;
      };
      EXPECT(Plan::kThreads * Plan::kLaunched <= 65536, tokens, " tokens: ", Plan::kLaunched);
      EXPECT(Plan::kThreads * (Plan::kLaunched + 8) > 65536, tokens, " tokens: ", Plan::kLaunched);
      EXPECT(is_a_size(Plan::kLaunched), tokens, " tokens: ", Plan::kLaunched);
      EXPECT(Plan::kThreads <= 1024 && Plan::kPermuters < kGroupTileRows, tokens, " tokens");
      // A lane's sums and its sets of fragments.
      const int needed = Plan::kSums + Plan::kSets * kLanePairs;
      if (!Plan::kTradesRegisters) {
        EXPECT(Plan::kLaunched >= needed, tokens, " tokens: ", Plan::kLaunched);
        return;
      }
      EXPECT(is_a_size(Plan::kRegisters) && is_a_size(Plan::kTokenRegisters), tokens,
             " tokens: ", Plan::kRegisters, " and ", Plan::kTokenRegisters);
      EXPECT(Plan::kTokenRegisters <= Plan::kLaunched && Plan::kRegisters >= Plan::kLaunched,
             tokens, " tokens: ", Plan::kRegisters, " and ", Plan::kTokenRegisters);
      EXPECT(Plan::kLanes * Plan::kRegisters +
                     (Plan::kThreads - Plan::kLanes) * Plan::kTokenRegisters <=
                 Plan::kThreads * Plan::kLaunched,
             tokens, " tokens: ", Plan::kRegisters, " and ", Plan::kTokenRegisters);
      EXPECT(Plan::kRegisters >= needed, tokens, " tokens: ", Plan::kRegisters);
    });
}

// Parts of the shared memory follow one another, as their alignments want; sums in parts.
TEST(what_shares_the_memory_lies_apart) {
  for (const int tokens : kWarpgroupTokens)
    with_form(tokens, [&]<WarpgroupConfig config>() {
      using Plan = WarpgroupPlan<config>;
      EXPECT(Plan::kRest >= Plan::kRings + Plan::kWaves * Plan::kStages * kTileBytes / 4, tokens);
      EXPECT(Plan::kRings % 16 == 0 && Plan::kRingWords % 16 == 0, tokens);
      EXPECT(Plan::kCopied >= Plan::kRest + Plan::kWaves * kRestWords && Plan::kCopied % 2 == 0,
             tokens);
      EXPECT(Plan::kReady - Plan::kCopied == (Plan::kPermutes ? 2 * Plan::kColumns : 0) &&
                 Plan::kRead - Plan::kReady == 2 * Plan::kColumns &&
                 Plan::kGathered - Plan::kRead == 2 * Plan::kColumns,
             tokens);
      EXPECT(Plan::kTokenRing >= Plan::kGathered + 2 && Plan::kTokenRing * 4 % 1024 == 0, tokens);
      EXPECT(Plan::kColumnWords * 4 == tokens * 128 && Plan::kColumnWords * 4 % 1024 == 0, tokens);
      EXPECT(Plan::kPastTokens == Plan::kTokenRing + Plan::kColumns * Plan::kColumnWords, tokens);
      EXPECT(Plan::kPlane == (Plan::kSumsReplaceTokens ? Plan::kTokenRing : Plan::kPastTokens),
             tokens);
      EXPECT(Plan::kPartSums * Plan::kParts == Plan::kSums && Plan::kPartSums % 4 == 0, tokens);
      EXPECT(
          Plan::kPartWords == Plan::kPartSums * arch::kWave && Plan::kPartWords <= Plan::kRingWords,
          tokens);
      for (const int blocks : {1, 3, 8})
        for (int rows = 1; rows <= kGroupTileRows * Plan::kGroups; ++rows) {
          int slots = 0;  // of the block that adds up most rows
          for (int row = 0; row < rows; row += blocks) ++slots;
          const int sums = Plan::kPlane + slots * blocks * kTileRows * tokens;
          EXPECT(Plan::shared_bytes(rows, blocks) == 4 * std::max(sums, Plan::kPastTokens), tokens,
                 " tokens, rows ", rows, ", blocks ", blocks);
        }
    });
}

// ---- the order of x ----

// As permute.hpp says it.
int place_of(int column) {
  const int t = column / 16, s = column / 4 % 4, h = column / 2 % 2, i = column % 2;
  return 16 * s + 8 * h + 2 * t + i;
}

// Where column c lies by what the waves do: of words that are two columns, four a piece, word
// c % 4 of pieces c / 4, + 2, + 4, + 6 become piece c.
int place_by_pieces(int column) {
  const int word = column / 2;
  for (int piece = 0; piece < 8; ++piece)
    for (int q = 0; q < 4; ++q)
      if (word == 4 * (2 * q + piece / 4) + piece % 4) return 2 * (4 * piece + q) + column % 2;
  return -1;
}

TEST(every_column_of_x_has_one_place) {
  std::vector<bool> taken(kTileColumns);
  for (int column = 0; column < kTileColumns; ++column) {
    const int place = place_of(column);
    EXPECT(place >= 0 && place < kTileColumns && !taken[place], "column ", column, " at ", place);
    taken[place] = true;
    EXPECT(place_by_pieces(column) == place, "column ", column, " at ", place, ", by pieces ",
           place_by_pieces(column));
  }
}

// Step s takes places 16 s .. + 15. Its instruction wants of A, in lane l, rows l / 4 and + 8,
// columns 2 (l % 4) + i in registers 0 and 1, and 8 further in registers 2 and 3.
TEST(a_step_multiplies_the_columns_that_its_lanes_hold) {
  using arch::MmaFragments;
  for (int row = 0; row < kTileRows; ++row)
    for (int column = 0; column < kTileColumns; ++column) {
      const int lane = MmaFragments::owner(row, column), slot = MmaFragments::slot(row, column);
      const int step = slot / 4, half = slot % 2, eight = slot / 2 % 2;
      EXPECT(row == lane / 4 + 8 * half, "row ", row, " in lane ", lane, ", register ", slot);
      const int wanted = 16 * step + 8 * eight + 2 * (lane % 4) + column % 2;
      EXPECT(place_of(column) == wanted, "column ", column, " lies at ", place_of(column),
             ", is multiplied with ", wanted);
    }
}

// Lanes l and l + 8 have row l % 8 of eight, of even pieces and odd ones: what eight lanes read or
// write at once is in all banks. And all lanes of a wave read each piece of 16 tokens once.
TEST(lanes_that_permute_are_in_different_banks) {
  std::vector<int> reads(16 * 8), writes(16 * 8);
  for (int i = 0; i < 4; ++i)
    for (int first = 0; first < arch::kWave; first += 8) {
      int read_banks = 0, written_banks = 0;
      for (int lane = first; lane < first + 8; ++lane) {
        const uint32_t row = lane % 8 + lane / 16 * 8, parity = lane / 8 % 2;
        const uint32_t from = block_byte(row, 8 * (2 * i + parity));
        const uint32_t to = block_byte(row, 8 * (4 * parity + i));
        read_banks |= 1 << from / 16 % 8;
        written_banks |= 1 << to / 16 % 8;
        ++reads[from / 16];
        ++writes[to / 16];
      }
      EXPECT(read_banks == 0xFF && written_banks == 0xFF, "lanes from ", first, ": banks ",
             read_banks, " and ", written_banks);
    }
  EXPECT(std::count(reads.begin(), reads.end(), 1) == 16 * 8, "a piece is not read once");
  EXPECT(std::count(writes.begin(), writes.end(), 1) == 16 * 8, "a piece is not written once");
}

// ---- without permuting x ----

// Register i of a lane is what the instruction wants of step i / 4: rows l / 4 and + 8, columns
// 2 (l % 4) + i and 8 further; and every weight of a tile has one owner.
TEST(lanes_pick_the_columns_of_a_step) {
  using arch::WarpgroupFragments;
  std::vector<int> owned(kTileWeights);
  for (int lane = 0; lane < arch::kWave; ++lane)
    for (int slot = 0; slot < kLanePairs; ++slot) {
      const int row = WarpgroupFragments::row(lane, slot);
      const int column = WarpgroupFragments::column(lane, slot);
      EXPECT(row == lane / 4 + slot % 2 * 8, "lane ", lane, ", register ", slot, ": row ", row);
      EXPECT(column == 16 * (slot / 4) + 8 * (slot / 2 % 2) + 2 * (lane % 4), "lane ", lane,
             ", register ", slot, ": column ", column);
      for (int i = 0; i < 2; ++i) {
        ++owned[row * kTileColumns + column + i];
        EXPECT(WarpgroupFragments::owner(row, column + i) == lane &&
                   WarpgroupFragments::slot(row, column + i) == slot,
               "row ", row, ", column ", column + i);
      }
    }
  EXPECT(std::count(owned.begin(), owned.end(), 1) == kTileWeights, "weights without an owner");
}

// As weights.hpp places the pieces of 16 bytes. 32 lanes that read two bytes each of eight rows,
// and eight rows of 16 bytes of codes, are in different banks or at the same word.
TEST(lanes_that_pick_are_in_different_banks) {
  for (int piece = 0; piece < 4; ++piece)
    for (int eight = 0; eight < 2; ++eight) {
      std::vector<int> word_of_bank(32, -1);
      for (int lane = 0; lane < arch::kWave; ++lane) {
        const int row = lane / 4,
                  byte = 64 * row + 16 * (piece ^ row / 2 % 4) + 8 * eight + 2 * (lane % 4);
        int& word = word_of_bank[byte / 4 % 32];
        EXPECT(word == -1 || word == byte / 4, "piece ", piece, ", lane ", lane);
        word = byte / 4;
      }
    }
  for (int piece = 0; piece < 2; ++piece) {
    int banks = 0;
    for (int row = 0; row < 8; ++row)
      banks |= 1 << (32 * row + 16 * (piece ^ row / 4 % 2)) / 16 % 8;
    EXPECT(banks == 0xFF, "codes, piece ", piece, ": banks ", banks);
  }
}

}  // namespace
}  // namespace nf12::test
