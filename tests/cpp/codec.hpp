// Weights, packed weights, and the packer written a second time straight from docs/format.md: one
// weight at a time, nothing shared with csrc but the constants of the layout.
#pragma once
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "csrc/cpu/cpu.hpp"
#include "tests/cpp/buffers.hpp"

namespace nf12::test {

// A stack of weights [x, n, k] inside larger storage, so that rows and experts are strided.
struct Weights {
  int64_t x, n, k;
  int64_t row_stride, expert_stride;
  std::unique_ptr<GuardedBuffer<uint16_t>> storage;

  Weights(int64_t x, int64_t n, int64_t k, int64_t row_gap = 0, int64_t expert_gap = 0);
  uint16_t& at(int64_t expert, int64_t row, int64_t column) {
    return (*storage)[expert * expert_stride + row * row_stride + column];
  }
  uint16_t at(int64_t expert, int64_t row, int64_t column) const {
    return (*storage)[expert * expert_stride + row * row_stride + column];
  }
  cpu::PackSource source() const { return {storage->data(), x, n, k, expert_stride, row_stride}; }
  std::vector<uint16_t> expert(int64_t index) const;  // [n, k], contiguous
};

using Random = std::mt19937_64;

// Exponents 112..127 mostly, as in a model; one weight in `rarity` is any of the 65,536 patterns.
void fill_like_a_model(Weights& w, Random& random, int rarity);

struct PackedBytes {
  int base = -1;
  std::vector<uint8_t> payload;
  std::vector<uint32_t> index;
  std::vector<uint32_t> escapes;
  bool operator==(const PackedBytes&) const = default;
};

// The packer under test. An empty payload and base -1: it refused.
PackedBytes pack(const Weights& w, int base, const cpu::Parallel& parallel, cpu::Level level);
// The second packer, and its rule of which weights a base may have.
PackedBytes pack_by_the_book(const Weights& w, int base);
bool base_allows(uint16_t bits, int base);

// Expert 0 of a packed stack, or the one given.
PackedView view_of(const PackedBytes& packed, int64_t n, int64_t k, int64_t expert = 0);
// A packed weight as far as its shape and strides go: of no memory.
PackedView weight_of(int64_t n, int64_t k);

std::vector<uint16_t> unpack(const PackedView& view, const cpu::Parallel& parallel,
                             cpu::Level level);

// The levels that have a codec of their own.
std::vector<cpu::Level> codec_levels();

// Reports the first difference, its place and both values.
void expect_equal_bits(const std::vector<uint16_t>& got, const std::vector<uint16_t>& wanted,
                       const std::string& what);
void expect_equal_packed(const PackedBytes& got, const PackedBytes& wanted,
                         const std::string& what);

}  // namespace nf12::test
