// The AMX kernel (csrc/cpu/gemm/tiled.hpp) on tile registers made of plain memory and AVX2
// decoding, so that its loops, tails and reordering run on machines without AMX.
#include <cstring>

#include "csrc/cpu/gemm/kernel.hpp"
#include "csrc/cpu/gemm/tiled.hpp"
#include "csrc/cpu/gemm/vector_avx2.hpp"

namespace nf12::cpu {
namespace {

struct Tile {
  alignas(64) uint8_t bytes[16][64];
};
thread_local Tile tiles[8];
thread_local bool configured = false;

struct ModelTiles {
  static void begin() {
    if (configured) __builtin_trap();
    configured = true;
    std::memset(tiles, 0xFF, sizeof tiles);  // NaN: a register used before it is loaded shows
  }
  static void end() {
    if (!configured) __builtin_trap();
    configured = false;
  }
  template <int kTile>
  static void zero() {
    std::memset(tiles[kTile].bytes, 0, sizeof tiles[kTile].bytes);
  }
  template <int kTile>
  static void load(const void* p, int64_t stride_bytes) {
    const auto* row = static_cast<const uint8_t*>(p);
    for (auto& bytes : tiles[kTile].bytes) {
      std::memcpy(bytes, row, sizeof bytes);
      row += stride_bytes;
    }
  }
  template <int kTile>
  static void store(void* p, int64_t stride_bytes) {
    auto* row = static_cast<uint8_t*>(p);
    for (const auto& bytes : tiles[kTile].bytes) {
      std::memcpy(row, bytes, sizeof bytes);
      row += stride_bytes;
    }
  }
  // sum[i][j] += left[i][2p] right[p][j, 0] + left[i][2p + 1] right[p][j, 1]
  template <int kSum, int kLeft, int kRight>
  static void multiply_add() {
    if (!configured) __builtin_trap();
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        float sum = get<float>(kSum, i, j);
        for (int p = 0; p < 16; ++p) {
          for (int h = 0; h < 2; ++h) {
            sum += bf16_to_float(get<uint16_t>(kLeft, i, 2 * p + h)) *
                   bf16_to_float(get<uint16_t>(kRight, p, 2 * j + h));
          }
        }
        std::memcpy(tiles[kSum].bytes[i] + sizeof sum * j, &sum, sizeof sum);
      }
    }
  }

 private:
  template <typename T>
  static T get(int tile, int row, int column) {
    T value;
    std::memcpy(&value, tiles[tile].bytes[row] + sizeof value * column, sizeof value);
    return value;
  }
};

}  // namespace

using Model = Tiled<Avx2, ModelTiles>;
extern const GemmKernel kGemmTiledModel;
const GemmKernel kGemmTiledModel = {Model::workspace_bytes, Model::run};

}  // namespace nf12::cpu
