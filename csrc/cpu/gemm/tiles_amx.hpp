// AMX: eight tile registers of 16 rows x 64 bytes, and one instruction that adds the product of a
// [16, 32] BF16 tile and a [32, 16] one to a [16, 16] FP32 one.
//
// The second factor comes in pairs: row p, column t of it holds elements 2p and 2p+1 of column t.
// TDPBF16PS takes subnormal inputs as zeros and flushes subnormal sums.
#pragma once
#include <cstdint>

#include "csrc/arch/target.hpp"

namespace nf12::cpu {
namespace {

// Written as assembly, since GCC's intrinsics take no template argument for a register's number.
struct AmxTiles {
  // A thread's tiles are in use between begin() and end(); releasing them keeps their 8 KiB out of
  // context switches.
  NF12_INLINE static void begin() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
  }
  NF12_INLINE static void end() { __asm__ volatile("tilerelease" ::); }

  template <int kTile>
  NF12_INLINE static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  NF12_INLINE static void load(const void* p, int64_t stride_bytes) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride_bytes), "i"(kTile)
                     : "memory");
  }
  template <int kTile>
  NF12_INLINE static void store(void* p, int64_t stride_bytes) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride_bytes), "i"(kTile)
                     : "memory");
  }
  template <int kSum, int kLeft, int kRight>
  NF12_INLINE static void multiply_add() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
  }
};

}  // namespace
}  // namespace nf12::cpu
