// AMX: eight tile registers of 16 rows x 64 bytes, and one instruction that adds the product of a
// [16, 32] BF16 tile and a [32, 16] one to a [16, 16] FP32 one.
//
// The second factor comes in pairs: row p, column t of it holds elements 2p and 2p+1 of column t.
// TDPBF16PS takes subnormal inputs as zeros and flushes subnormal sums.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "csrc/arch/target.hpp"

namespace nf12::cpu {
namespace {

// Tile registers are named by constants in the instructions: hence template arguments.
struct AmxTiles {
  // A thread's tiles are in use between begin() and end(); releasing them keeps the 8 KiB out of
  // context switches.
  NF12_INLINE static void begin() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    _tile_loadconfig(&config);
  }
  NF12_INLINE static void end() { _tile_release(); }

  template <int kTile>
  NF12_INLINE static void zero() {
    _tile_zero(kTile);
  }
  template <int kTile>
  NF12_INLINE static void load(const void* p, int64_t stride_bytes) {
    _tile_loadd(kTile, p, stride_bytes);
  }
  template <int kTile>
  NF12_INLINE static void store(void* p, int64_t stride_bytes) {
    _tile_stored(kTile, p, stride_bytes);
  }
  template <int kSum, int kLeft, int kRight>
  NF12_INLINE static void multiply_add() {
    _tile_dpbf16ps(kSum, kLeft, kRight);
  }
};

}  // namespace
}  // namespace nf12::cpu
