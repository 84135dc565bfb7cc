// The kernel for any processor: y = x W^T + bias, a tile decoded to FP32 at a time.
//
// A thread owns whole 16-row blocks. Each tile is decoded once into 4 KiB and multiplied with every
// token; sums are kept in kLanes parts, which compilers turn into vectors of what the target has.
#include "csrc/cpu/gemm/epilogue.hpp"
#include "csrc/cpu/gemm/kernel.hpp"
#include "csrc/cpu/gemm/patch.hpp"
#include "csrc/cpu/parallel.hpp"
#include "csrc/format/decode.hpp"

namespace nf12::cpu {
namespace {

constexpr int kLanes = 8;

struct Sum {
  float lane[kLanes];

  float total() const {
    float half[kLanes / 2];
    for (int i = 0; i < kLanes / 2; ++i) half[i] = lane[i] + lane[i + kLanes / 2];
    return (half[0] + half[2]) + (half[1] + half[3]);
  }
};

// FP32 [m, columns], zeros beyond k.
void expand_x(const GemmArgs& args, int64_t columns, float* x) {
  for (int64_t t = 0; t < args.m; ++t) {
    const uint16_t* source = args.x + t * args.x_row_stride;
    for (int64_t k = 0; k < args.w.k; ++k) x[t * columns + k] = bf16_to_float(source[k]);
    for (int64_t k = args.w.k; k < columns; ++k) x[t * columns + k] = 0.0f;
  }
}

// Codes first, one to a byte: what follows is then the same for every column, which compilers turn
// into vectors.
void decode_row(const uint8_t* tile, int row, uint16_t* bits) {
  uint8_t codes[kTileColumns];
  for (int column = 0; column < kTileColumns; column += 8) {
    uint32_t word;
    std::memcpy(&word, tile + code_word_byte(row, column), sizeof word);
    for (int i = 0; i < 8; ++i) codes[column + i] = word >> code_bit(i) & 0xF;
  }
  const uint8_t* bytes = tile + sign_mantissa_byte(row, 0);
  for (int i = 0; i < kTileColumns; ++i) bits[i] = decode_weight(bytes[i], codes[i]);
}

void decode_tile(const PackedView& w, int64_t r, int64_t c, float* out) {
  uint16_t bits[kTileWeights];
  for (int row = 0; row < kTileRows; ++row) {
    decode_row(w.tile(r, c), row, bits + kTileColumns * row);
  }
  if (const uint32_t word = w.index_word(r, c)) {
    patch_tile(w, word, [&bits](int position, uint16_t value) { bits[position] = value; });
  }
  for (int i = 0; i < kTileWeights; ++i) out[i] = bf16_to_float(bits[i]);
}

void add_products(const float* tile_row, const float* x, Sum* sum) {
  for (int i = 0; i < kTileColumns; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) sum->lane[l] += tile_row[i + l] * x[i + l];
  }
}

// A few tokens at a time, so that the sums stay on the stack whatever m is; the tiles are then
// decoded once per kTokens tokens.
constexpr int kTokens = 16;

void multiply_row_block(const GemmArgs& args, const float* x, int64_t columns, int64_t r) {
  for (int64_t t0 = 0; t0 < args.m; t0 += kTokens) {
    const int64_t tokens = args.m - t0 < kTokens ? args.m - t0 : kTokens;
    Sum sums[kTokens][kTileRows] = {};
    for (int64_t c = 0; c * kTileColumns < columns; ++c) {
      alignas(64) float tile[kTileWeights];
      decode_tile(args.w, r, c, tile);
      for (int64_t t = 0; t < tokens; ++t) {
        const float* x_part = x + (t0 + t) * columns + c * kTileColumns;
        for (int row = 0; row < kTileRows; ++row) {
          add_products(tile + row * kTileColumns, x_part, &sums[t][row]);
        }
      }
    }
    float totals[kTokens][kTileRows];
    for (int64_t t = 0; t < tokens; ++t) {
      for (int row = 0; row < kTileRows; ++row) totals[t][row] = sums[t][row].total();
    }
    finish_row_block(args, r, t0, tokens, totals[0]);
  }
}

size_t workspace_bytes(int64_t m, int64_t, int64_t k) {
  return sizeof(float) * static_cast<size_t>(m * tile_columns(k) * kTileColumns);
}

void run(const GemmArgs& args, const Parallel& parallel) {
  const int64_t columns = tile_columns(args.w.k) * kTileColumns;
  auto* x = static_cast<float*>(args.workspace);
  expand_x(args, columns, x);
  parallel_for(parallel, tile_rows(args.w.n), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) multiply_row_block(args, x, columns, r);
  });
}

}  // namespace

const GemmKernel kGemmPortable = {workspace_bytes, run};

}  // namespace nf12::cpu
