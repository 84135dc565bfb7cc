// Matrix fragments: which weights and which x of a 16 x 64 tile each lane of a wave holds.
//
// One map serves both operands, rows being rows of W on one side and tokens on the other. A lane
// holds 32 of the 64 columns' values: kRuns rows, kRunColumns adjacent columns of each, two values
// to a register, 16 registers. The tile is multiplied in four steps; step s takes kStepColumns of
// every run, so that over all lanes a step covers 16 columns. A sum over columns may be taken in
// any order, therefore the columns of a step need not be neighbours and no lane needs another's.
//
//   WmmaFragments, gfx12     lane l: row l % 16                columns 32 (l / 16) .. + 31
//                            sums[i]: row 8 (l / 16) + i       token l % 16
//   MmaFragments, m16n8k16   lane l: rows l / 4, l / 4 + 8     columns 16 (l % 4) .. + 15
//     twice, tokens 0..7     sums[i]: row l / 4 + 8 (i / 2 % 2)
//     and 8..15              token 8 (i / 4) + 2 (l % 4) + i % 2
//
// WarpgroupFragments is the instruction's own order instead, in which a step is 16 neighbouring
// columns: x lies in shared memory as the tensor unit brings it.
//
//   m64nNk16, a wave's 16    lane l, register i: row l / 4 + 8 (i % 2)
//     of the 64 rows           columns 16 (i / 4) + 8 (i / 2 % 2) + 2 (l % 4) and + 1
#pragma once

namespace nf12::arch {

inline constexpr int kFragmentSteps = 4;  // of a tile's 64 columns
inline constexpr int kFragmentSums = 8;   // of a lane, of 16 rows x 16 tokens

// Register of value pair `i` of a lane, counted run by run: in the order in which an instruction
// takes them, which for m16n8k16 is both rows of a pair of columns.
template <typename Fragments>
NF12_INLINE constexpr int slot_of_pair(int i) {
  constexpr int pairs = Fragments::kRunColumns / 2;
  return i % pairs * Fragments::kRuns + i / pairs;
}

struct WmmaFragments {
  static constexpr int kRuns = 1;
  static constexpr int kRunColumns = 32;
  static constexpr int kStepColumns = kRunColumns / kFragmentSteps;
  static constexpr int kSumRun = 8;  // neighbouring sums of one token in neighbouring rows

  NF12_INLINE static constexpr int row(int lane, int) { return lane % 16; }
  NF12_INLINE static constexpr int column(int lane) { return lane / 16 * kRunColumns; }
  NF12_INLINE static constexpr int owner(int row, int column) {
    return row + 16 * (column / kRunColumns);
  }
  NF12_INLINE static constexpr int slot(int, int column) { return column % kRunColumns / 2; }
  NF12_INLINE static constexpr int sum_row(int lane, int i) { return lane / 16 * 8 + i; }
  NF12_INLINE static constexpr int sum_token(int lane, int) { return lane % 16; }
};

struct MmaFragments {
  static constexpr int kRuns = 2;
  static constexpr int kRunColumns = 16;
  static constexpr int kStepColumns = kRunColumns / kFragmentSteps;
  static constexpr int kSumRun = 1;

  NF12_INLINE static constexpr int row(int lane, int run) { return lane / 4 + 8 * run; }
  NF12_INLINE static constexpr int column(int lane) { return lane % 4 * kRunColumns; }
  NF12_INLINE static constexpr int owner(int row, int column) {
    return row % 8 * 4 + column / kRunColumns;
  }
  NF12_INLINE static constexpr int slot(int row, int column) {
    return column % kRunColumns / 2 * kRuns + row / 8;
  }
  NF12_INLINE static constexpr int sum_row(int lane, int i) { return lane / 4 + i / 2 % 2 * 8; }
  NF12_INLINE static constexpr int sum_token(int lane, int i) {
    return i / 4 * 8 + lane % 4 * 2 + i % 2;
  }
};

struct WarpgroupFragments {
  NF12_INLINE static constexpr int row(int lane, int slot) { return lane / 4 + slot % 2 * 8; }
  NF12_INLINE static constexpr int column(int lane, int slot) {
    return slot / 4 * 16 + slot / 2 % 2 * 8 + lane % 4 * 2;
  }
  NF12_INLINE static constexpr int owner(int row, int column) {
    return row % 8 * 4 + column % 8 / 2;
  }
  NF12_INLINE static constexpr int slot(int row, int column) {
    return column / 16 * 4 + column % 16 / 8 * 2 + row / 8;
  }
};

}  // namespace nf12::arch
