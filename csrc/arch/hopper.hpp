// The words that only sm_90a has, by target: beside target.hpp, for the kernels that are compiled
// for that GPU alone, and for the host model, which has them too.
#pragma once
#include "csrc/arch/target.hpp"

namespace nf12::arch {

inline constexpr int kGroupWaves = 4;  // of a warpgroup
inline constexpr int kGroupLanes = kGroupWaves * kWave;

// A operand: 64 rows x 16 columns, B: `tokens` rows x 16 columns, both BF16 in shared memory, rows
// of 64 columns at 128 bytes whose pieces of 16 bytes are permuted by the row's number modulo 8.
// Eight rows are 1,024 bytes; the next 16 columns are two units on.
// An operand is named by the lower word of the instruction's 64 bits; the upper one is the same for
// all. Written out with every instruction, so that a next one is an addition of 32 bits.
inline constexpr uint32_t kOperandUpper = uint32_t{1} << 30 | 1024 / 16;
inline constexpr uint32_t kOperandLayout = uint32_t{1} << 16;
NF12_INLINE constexpr uint32_t operand_at(uint32_t shared) { return kOperandLayout | shared >> 4; }
inline constexpr uint32_t kOperandStep = 16 * 2 / 16;  // 16 columns, in the operand's units

}  // namespace nf12::arch

#if defined(__CUDACC__) || defined(__HIP__)
#include "csrc/arch/nvidia/hopper.hpp"
#else
#include "csrc/arch/host/hopper.hpp"
#endif
