// A gemm on packed weights as the tests of its kernels pose it: data, references, comparisons.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "csrc/gemm/combine.hpp"
#include "csrc/gemm/epilogue.hpp"
#include "csrc/gemm/grid.hpp"
#include "csrc/gemm/params.hpp"
#include "tests/cpp/codec.hpp"
#include "tests/host_model/machine.hpp"

namespace nf12::test {

inline float value_of(uint16_t bits) { return float_from_bf16(bits); }
inline uint16_t exact_bits(double value) {
  const auto as_float = static_cast<float>(value);
  const auto bits = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, as_float) >> 16);
  EXPECT(value_of(bits) == value, value, " is not a BF16 value");
  return bits;
}

// x [m, k] with a gap after each row; NaN in the gaps shows as NaN in y if it is ever multiplied.
struct Activations {
  int64_t m, k, stride;
  GuardedBuffer<uint16_t> storage;
  int64_t offset;

  Activations(int64_t m, int64_t k, int64_t gap, int64_t offset)
      : m(m), k(k), stride(k + gap), storage(offset + (m - 1) * stride + k), offset(offset) {
    for (int64_t i = 0; i < storage.size(); ++i) storage[i] = 0x7FC0;
  }
  uint16_t* data() { return storage.data() + offset; }
  uint16_t& at(int64_t token, int64_t column) { return data()[token * stride + column]; }
};

struct GemmProblem {
  Weights w;
  PackedBytes packed;
  Activations x;
  std::vector<uint16_t> bias;  // empty: none

  GemmProblem(int64_t m, int64_t n, int64_t k, int64_t x_gap = 0, int64_t x_offset = 0)
      : w(1, n, k), x(m, k, x_gap, x_offset) {}
  void pack(int base = -1) { packed = pack_by_the_book(w, base); }
  PackedView view() const { return view_of(packed, w.n, w.k); }
};

inline GemmParams params_of(GemmProblem& problem, const PackedView& view, uint16_t* y,
                            int64_t y_stride) {
  GemmParams p = {};
  p.weight = view;
  p.x = problem.x.data();
  p.x_stride = problem.x.stride;
  p.bias = problem.bias.empty() ? nullptr : problem.bias.data();
  p.y = y;
  p.y_stride = y_stride;
  p.m = static_cast<int32_t>(problem.x.m);
  p.scale = std::ldexp(1.0f, -scale_shift(view.base));
  return p;
}

// The memory that a launch reads.
inline std::vector<arch::host::Buffer> inputs_of(const GemmProblem& problem, const GemmParams& p) {
  const size_t tile_row_bytes = tile_columns(p.weight.k) * kTileBytes;
  const size_t last_row = tile_rows(p.weight.n) - 1;
  return {{p.weight.payload, last_row * p.weight.payload_stride_bytes + tile_row_bytes, false,
           "payload"},
          {p.weight.index, 4 * (last_row * p.weight.index_stride + tile_columns(p.weight.k)), false,
           "index"},
          {p.weight.escapes, size_t{16} * p.weight.quads, false, "escapes"},
          {p.x, 2 * static_cast<size_t>((p.m - 1) * p.x_stride + p.weight.k), false, "x"},
          {p.bias, 2 * problem.bias.size(), false, "bias"}};
}

// y [m, n] with gaps between its rows, which must stay as they were.
struct Outputs {
  int64_t n, stride, offset;
  GuardedBuffer<uint16_t> storage;
  std::vector<uint16_t> before;

  Outputs(int64_t m, int64_t n, int64_t gap = 5, int64_t offset = 0)
      : n(n),
        stride(n + gap),
        offset(offset),
        storage(offset + (m - 1) * stride + n),
        before(storage.copy()) {}
  uint16_t* data() { return storage.data() + offset; }
  arch::host::Buffer buffer() {
    return {storage.data(), 2 * static_cast<size_t>(storage.size()), true, "y"};
  }
  std::vector<uint16_t> rows() {
    std::vector<uint16_t> out;
    for (int64_t i = 0; i < storage.size(); ++i) {
      if (i >= offset && (i - offset) % stride < n)
        out.push_back(storage[i]);
      else
        EXPECT(storage[i] == before[i], "y written between its rows, element ", i);
    }
    return out;
  }
};

// A launch whose grid and splits are set in `p`, and the sum of its splits. `body` is given p with
// its partials.
template <typename Body>
void run_split(const std::string& kernel, const Grid& grid, int waves, uint64_t seed,
               const GemmProblem& problem, GemmParams p, Outputs& y, const Body& body) {
  GuardedBuffer<float> sums(workspace_floats(p));
  const auto partials = [&](bool writable) -> arch::host::Buffer {
    return {sums.data(), 4 * static_cast<size_t>(sums.size()), writable, "partials"};
  };
  p.partials = p.splits > 1 ? sums.data() : nullptr;
  std::vector<arch::host::Buffer> buffers = inputs_of(problem, p);
  buffers.push_back(p.splits > 1 ? partials(true) : y.buffer());
  try {
    run_kernel({kernel, static_cast<int>(grid.x), static_cast<int>(grid.y), waves, seed, buffers},
               p, [&] { body(p); });
    if (p.splits == 1) return;
    const Grid last = combine_grid(p);
    buffers = {partials(false), {p.bias, 2 * problem.bias.size(), false, "bias"}, y.buffer()};
    run_kernel({"nf12_gemm_combine", static_cast<int>(last.x), static_cast<int>(last.y),
                kCombineThreads / arch::kWave, seed, buffers},
               p, [&] { combine_splits(p, kCombineThreads); });
  } catch (const arch::host::Report& report) {
    EXPECT(false, report.what());
  }
}

// BF16 bits of w * 2^s, and of what padding columns decode to.
inline uint16_t scaled_bits(uint16_t bits, int base) {
  const uint32_t exponent = bits >> 7 & 0xFF;
  if (exponent == 0xFF) return bits;  // infinities, and NaN with its payload
  const float scaled = std::ldexp(value_of(bits), scale_shift(base));
  return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, scaled) >> 16);
}

inline bool is_nan(uint16_t bits) { return (bits & 0x7FFF) > 0x7F80; }

inline void expect_same(const std::vector<uint16_t>& got, const std::vector<uint16_t>& wanted,
                        int64_t n, const std::string& what) {
  EXPECT(got.size() == wanted.size(), what, ": ", got.size(), " outputs");
  for (size_t i = 0; i < std::min(got.size(), wanted.size()); ++i) {
    // Which NaN comes out depends on the order of an instruction's operands, and no GPU promises
    // it.
    if (got[i] == wanted[i] || (is_nan(got[i]) && is_nan(wanted[i]))) continue;
    EXPECT(false, what, ": token ", i / n, ", row ", i % n, " is ", value_of(got[i]), ", wanted ",
           value_of(wanted[i]));
    return;
  }
}

// Any order of FP32 sums: the error is at most ulp_bf16(reference) / 2 + (k / 16 + 1) 2^-23 sum |x
// w|, the bias a term of the sum. A result that is not finite must be the same, unless some order
// of the sum overflows on its way.
inline void expect_within_bound(const std::vector<uint16_t>& got,
                                const std::vector<uint16_t>& wanted, GemmProblem& problem,
                                const std::string& what) {
  const int64_t n = problem.w.n, k = problem.w.k;
  EXPECT(got.size() == wanted.size(), what, ": ", got.size(), " outputs");
  for (size_t i = 0; i < std::min(got.size(), wanted.size()); ++i) {
    const int64_t token = i / n, row = i % n;
    if (got[i] == wanted[i] || (is_nan(got[i]) && is_nan(wanted[i]))) continue;
    double reference = problem.bias.empty() ? 0 : value_of(problem.bias[row]);
    double magnitude = std::abs(reference), finite = magnitude;
    for (int64_t j = 0; j < k; ++j) {
      const double product =
          double{value_of(problem.x.at(token, j))} * value_of(problem.w.at(0, row, j));
      reference += product;
      magnitude += std::abs(product);
      if (std::isfinite(product)) finite += std::abs(product);
    }
    // An overflow may also meet an infinity of the other sign.
    if (std::ldexp(finite, scale_shift(problem.packed.base)) >= 0x1p127) continue;
    const double ulp = std::ldexp(1.0, std::ilogb(reference) - 7);
    const double bound = ulp / 2 + (k / 16.0 + 1) * 0x1p-23 * magnitude;
    if (std::isfinite(reference) && std::abs(value_of(got[i]) - reference) <= bound) continue;
    EXPECT(false, what, ": token ", token, ", row ", row, " is ", value_of(got[i]), ", wanted ",
           reference, ", bound ", bound);
    return;
  }
}

// Against a reference that adds in the order of the model's matrix instruction: bit for bit in the
// model; a card has its own order within an instruction, and is held to the bound.
inline void expect_in_model_order(const std::vector<uint16_t>& got,
                                  const std::vector<uint16_t>& wanted, GemmProblem& problem,
                                  const std::string& what) {
  if (kMatrixOrderIsKnown)
    expect_same(got, wanted, problem.w.n, what);
  else
    expect_within_bound(got, wanted, problem, what);
}

// The columns of a tile in the order in which the steps of that instruction take them.
template <typename Fragments>
std::vector<int> columns_in_order() {
  std::vector<int> order;
  for (int step = 0; step < arch::kFragmentSteps; ++step)
    for (int run = 0; run < kTileColumns; run += Fragments::kRunColumns)
      for (int i = 0; i < Fragments::kStepColumns; ++i)
        order.push_back(run + step * Fragments::kStepColumns + i);
  return order;
}

// Small integers: every sum is exact in FP32, so the result is the integer product, rounded once. A
// zero is an escape: some tiles have so many that they are raw, some have a list, half have none.
inline void fill_integers(GemmProblem& problem, Random& random) {
  for (int64_t row = 0; row < problem.w.n; ++row)
    for (int64_t k = 0; k < problem.w.k; ++k) {
      const int64_t kind = (row / kTileRows + k / kTileColumns) % 4;
      int weight = static_cast<int>(random() % 7) - 3;
      if (weight == 0 && kind != 1 && (kind != 2 || random() % 8 != 0)) weight = 1;
      problem.w.at(0, row, k) = exact_bits(weight);
    }
  for (int64_t t = 0; t < problem.x.m; ++t)
    for (int64_t k = 0; k < problem.x.k; ++k)
      problem.x.at(t, k) = exact_bits(static_cast<int>(random() % 5) - 2);
}

inline void fill_bias(GemmProblem& problem, Random& random) {
  problem.bias.resize(problem.w.n);
  for (uint16_t& bias : problem.bias) bias = exact_bits(static_cast<int>(random() % 9) - 4);
}

// Tile i has i escapes: none, lists of each length, and from tile 65 on raw ones.
inline void put_lists_of_every_length(GemmProblem& problem, Random& random) {
  std::vector<int> places(kTileWeights);
  std::iota(places.begin(), places.end(), 0);
  const int64_t columns = problem.w.k / kTileColumns;
  for (int64_t tile = 0; tile < problem.w.n / kTileRows * columns; ++tile) {
    std::shuffle(places.begin(), places.end(), random);
    for (int i = 0; i < kTileWeights; ++i) {
      uint16_t& weight = problem.w.at(0, tile / columns * kTileRows + places[i] / kTileColumns,
                                      tile % columns * kTileColumns + places[i] % kTileColumns);
      if (i < tile)
        weight = 0;
      else if (weight == 0)
        weight = exact_bits(2);
    }
  }
}

// The view of `all` from a tile on, of the shape of `part`, which gets its weights: the same table,
// other strides.
inline PackedView slice_into(GemmProblem& part, const GemmProblem& all, int64_t tile_row,
                             int64_t tile_column) {
  for (int64_t row = 0; row < part.w.n; ++row)
    for (int64_t k = 0; k < part.w.k; ++k)
      part.w.at(0, row, k) =
          all.w.at(0, row + tile_row * kTileRows, k + tile_column * kTileColumns);
  PackedView view = all.view();
  view.payload += tile_row * view.payload_stride_bytes + tile_column * kTileBytes;
  view.index += tile_row * view.index_stride + tile_column;
  view.n = part.w.n;
  view.k = part.w.k;
  return view;
}

inline std::vector<uint16_t> integer_product(GemmProblem& problem) {
  std::vector<uint16_t> out;
  for (int64_t t = 0; t < problem.x.m; ++t)
    for (int64_t row = 0; row < problem.w.n; ++row) {
      double sum = problem.bias.empty() ? 0 : value_of(problem.bias[row]);
      for (int64_t k = 0; k < problem.w.k; ++k)
        sum += double{value_of(problem.x.at(t, k))} * value_of(problem.w.at(0, row, k));
      const auto as_float = static_cast<float>(sum);
      out.push_back(bf16_from_float_bits(__builtin_bit_cast(uint32_t, as_float)));
    }
  return out;
}

// Values of a model, and among them anything a BF16 can be.
inline void fill_model(GemmProblem& problem, Random& random, int rarity) {
  fill_like_a_model(problem.w, random, rarity);
  for (int64_t t = 0; t < problem.x.m; ++t)
    for (int64_t k = 0; k < problem.x.k; ++k) {
      const auto sign = static_cast<uint16_t>(random() % 2 << 15);
      problem.x.at(t, k) =
          static_cast<uint16_t>(sign | (118 + random() % 12) << 7 | (random() & 0x7F));
    }
}

// What decoding or a multiplier may treat in its own way.
inline constexpr uint16_t kSpecialWeights[] = {0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF,
                                               0x0001, 0x807F, 0x0080, 0x7F7F, 0xFF7F};

// Each alone in its row, 4 i.
inline void put_special_weights(GemmProblem& problem, size_t count = std::size(kSpecialWeights)) {
  for (size_t i = 0; i < count; ++i) problem.w.at(0, 4 * i, 17 * i) = kSpecialWeights[i];
}

inline void put_special_activations(GemmProblem& problem, Random& random) {
  for (const uint16_t special : {0x7F80, 0x7FC0, 0x8000, 0x0001})
    problem.x.at(random() % problem.x.m, random() % problem.x.k) = special;
}

// For a sum in any order: in some the two largest weights overflow, which may meet an infinite x.
inline void put_specials_for_any_order(GemmProblem& problem, Random& random, bool infinite_x) {
  put_special_weights(problem, std::size(kSpecialWeights) - (infinite_x ? 2 : 0));
  for (const uint16_t special : {0x7FC0, 0x8000, 0x0001, infinite_x ? 0x7F80 : 0x8001})
    problem.x.at(random() % problem.x.m, random() % problem.x.k) = special;
}

// Index words that lead past the table's end, or are none at all.
inline constexpr uint32_t kHostileIndexWords[] = {
    0xFFu, 0xFFFFFF01u, 0xFFFFFFFFu, 65u, 254u, 1u << 8, 0x140u, 0x1FFu, 0x7FFFFF40u};

// A table none of whose stretches names a weight twice: two lanes would write it, in any order.
inline void name_escapes_once(GemmProblem& problem) {
  std::vector<uint32_t>& escapes = problem.packed.escapes;
  for (size_t i = 0; i < escapes.size(); ++i)
    escapes[i] = static_cast<uint32_t>(i % kTileWeights) << 16 | exact_bits(1);
}

// Every fourth column gets large values of x, and the one opposite takes their products away again:
// what is left is far smaller than what was rounded, so that another order of the sum shows even
// in BF16.
inline void make_order_matter(GemmProblem& problem) {
  const int64_t k = problem.x.k;
  for (int64_t i = 0; i < k / 2; i += 4) {
    for (int64_t row = 0; row < problem.w.n; ++row)
      problem.w.at(0, row, k - 1 - i) = problem.w.at(0, row, i);
    for (int64_t t = 0; t < problem.x.m; ++t) {
      problem.x.at(t, i) = exact_bits(std::ldexp(value_of(problem.x.at(t, i)), 12));
      problem.x.at(t, k - 1 - i) = problem.x.at(t, i) ^ 0x8000;
    }
  }
}

}  // namespace nf12::test
