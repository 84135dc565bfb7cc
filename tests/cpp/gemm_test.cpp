// gemm at every level this processor has, and the AMX kernel on a model of its tile registers.
//
// Most tests use small integers: their sums are exact in FP32 in any order, so that every level
// must give the same bits and a weight multiplied with the wrong activation cannot hide in a
// tolerance.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "csrc/cpu/gemm/epilogue.hpp"
#include "csrc/cpu/gemm/kernel.hpp"
#include "csrc/format/escapes.hpp"
#include "tests/cpp/codec.hpp"

namespace nf12::cpu {
#if defined(__x86_64__)
extern const GemmKernel kGemmTiledModel;
#endif
}  // namespace nf12::cpu

namespace nf12::test {
namespace {

struct Kernel {
  std::string name;
  bool flushes_subnormals;  // allowed to: the BF16 instructions do
  std::function<size_t(int64_t m, int64_t n, int64_t k)> workspace_bytes;
  std::function<void(const cpu::GemmArgs&, const cpu::Parallel&)> run;
};

const std::vector<Kernel>& kernels() {
  static const std::vector<Kernel> all = [] {
    std::vector<Kernel> list;
    for (const cpu::Level level : supported_levels()) {
      list.push_back({cpu::level_name(level), level >= cpu::Level::kAvx512Bf16,
                      [=](int64_t m, int64_t n, int64_t k) {
                        return cpu::gemm_workspace_bytes(m, n, k, level);
                      },
                      [=](const cpu::GemmArgs& args, const cpu::Parallel& parallel) {
                        cpu::gemm(args, level, parallel);
                      }});
    }
#if defined(__x86_64__)
    if (cpu::level_supported(cpu::Level::kAvx2)) {
      list.push_back({"model of amx", false, cpu::kGemmTiledModel.workspace_bytes,
                      [](const cpu::GemmArgs& args, const cpu::Parallel& parallel) {
                        if (args.m > 0) cpu::kGemmTiledModel.run(args, parallel);
                      }});
    }
#endif
    return list;
  }();
  return all;
}

float value_of(uint16_t bits) { return cpu::bf16_to_float(bits); }

// BF16 of a value that has one.
uint16_t exact_bits(double value) {
  const uint16_t bits = cpu::float_to_bf16(static_cast<float>(value));
  EXPECT(value_of(bits) == value, value, " is not a BF16 value");
  return bits;
}

// x [m, k] at an odd offset with a gap after each row, in memory that nobody may read beyond.
struct Activations {
  int64_t m, k, row_stride;
  GuardedBuffer<uint16_t> storage;

  Activations(int64_t m, int64_t k)
      : m(m), k(k), row_stride(k + 3), storage(m == 0 ? 0 : (m - 1) * row_stride + k) {
    for (int64_t i = 0; i < storage.size(); ++i) storage[i] = 0x7FC0;  // NaN in the gaps
  }
  uint16_t& at(int64_t token, int64_t column) { return storage[token * row_stride + column]; }
  uint16_t at(int64_t token, int64_t column) const { return storage[token * row_stride + column]; }
};

// y [m, n] of one call, after the guard zones and the gaps between rows were found untouched.
std::vector<uint16_t> multiply(const Kernel& kernel, const Activations& x, const PackedView& w,
                               const uint16_t* bias = nullptr,
                               const cpu::Parallel& parallel = kThreeThreads) {
  constexpr int64_t kGap = 5, kAlignment = 64;
  const int64_t y_stride = w.n + kGap;
  GuardedBuffer<uint16_t> y(x.m == 0 ? 0 : (x.m - 1) * y_stride + w.n);
  const std::vector<uint16_t> before = y.copy();
  const size_t bytes = kernel.workspace_bytes(x.m, w.n, w.k);
  GuardedBuffer<uint8_t> workspace(static_cast<int64_t>(bytes) + kAlignment);
  uint8_t* aligned = workspace.data();
  while (reinterpret_cast<uintptr_t>(aligned) % kAlignment != 0) ++aligned;

  cpu::GemmArgs args{x.storage.data(), x.row_stride, x.m, w, bias, y.data(), y_stride, aligned};
  kernel.run(args, parallel);

  for (uint8_t* p = aligned + bytes; p < workspace.data() + workspace.size(); ++p) {
    EXPECT(*p == 0xA5, kernel.name, " wrote past its workspace");
  }
  std::vector<uint16_t> out;
  for (int64_t i = 0; i < y.size(); ++i) {
    if (i % y_stride < w.n) {
      out.push_back(y[i]);
    } else {
      EXPECT(y[i] == before[i], kernel.name, " wrote between rows of y");
    }
  }
  return out;
}

// Weights and activations whose products and sums are small integers, with escapes of every kind
// that stays exact: zeros, and values outside the window.
struct ExactCase {
  Weights w;
  Activations x;
  std::vector<uint16_t> bias;
  PackedBytes packed;

  ExactCase(int64_t m, int64_t n, int64_t k, Random& random, int base = -1)
      : w(1, n, k), x(m, k), bias(n) {
    const auto small = [&](int limit) {
      return static_cast<int>(random() % (2 * limit + 1)) - limit;
    };
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        // Tile row 1 is raw, one tile in three listed, the others clean.
        const bool raw = i / 16 == 1, listed = (i / 16 + j / 64) % 3 == 0 && random() % 40 == 0;
        int value = raw ? small(3) : 1 + static_cast<int>(random() % 7);
        if (listed) value = 0;
        if (random() % 2) value = -value;
        w.at(0, i, j) = exact_bits(value) | (value == 0 && random() % 2 ? 0x8000 : 0);
      }
    }
    for (int64_t t = 0; t < m; ++t) {
      for (int64_t j = 0; j < k; ++j) x.at(t, j) = exact_bits(small(3));
    }
    for (uint16_t& b : bias) b = exact_bits(small(8));
    packed = pack_by_the_book(w, base);
  }

  PackedView view() const { return view_of(packed, w.n, w.k); }

  std::vector<uint16_t> expected(bool with_bias) const {
    std::vector<uint16_t> y;
    for (int64_t t = 0; t < x.m; ++t) {
      for (int64_t i = 0; i < w.n; ++i) {
        int64_t sum = with_bias ? static_cast<int64_t>(value_of(bias[i])) : 0;
        for (int64_t j = 0; j < w.k; ++j) {
          sum += static_cast<int64_t>(value_of(x.at(t, j))) *
                 static_cast<int64_t>(value_of(w.at(0, i, j)));
        }
        y.push_back(cpu::float_to_bf16(static_cast<float>(sum)));
      }
    }
    return y;
  }
};

void expect_exact(const ExactCase& c, const std::string& what) {
  const int64_t m = c.x.m;
  for (const Kernel& kernel : kernels()) {
    const std::vector<uint16_t> y = multiply(kernel, c.x, c.view(), c.bias.data());
    const std::vector<uint16_t> again = multiply(kernel, c.x, c.view(), c.bias.data(), kOneThread);
    const std::string name = join(kernel.name, " m ", m, " n ", c.w.n, " k ", c.w.k, " ", what);
    expect_equal_bits(y, c.expected(true), name);
    expect_equal_bits(again, y, name + ", one thread");
  }
}

TEST(every_shape_gives_exact_sums) {
  Random random(1);
  for (const int64_t k : {1, 4, 63, 64, 65, 200, 4096, 4104, 5120}) {
    for (const int64_t n : {1, 15, 16, 17, 48}) {
      expect_exact(ExactCase(k > 1000 ? 2 : 5, n, k, random), "");
    }
  }
}

// One more and one less than every count at which a kernel changes its path, its register block,
// its group of tokens or its pass over them.
TEST(every_token_count_gives_exact_sums) {
  Random random(2);
  for (const int64_t m : {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  11, 12,  13,  15,  16,  17, 18,
                          24, 25, 31, 32, 33, 48, 49, 63, 64, 65, 80, 127, 128, 129, 130, 200}) {
    expect_exact(ExactCase(m, 33, 130, random), "");
  }
}

TEST(every_base_scales_back) {
  Random random(3);
  for (int base = kMinBase; base <= kMaxBase; ++base) {
    const ExactCase c(3, 20, 70, random, base);
    if (c.packed.base == base) expect_exact(c, join("base ", base));
  }
}

TEST(no_bias) {
  Random random(4);
  const ExactCase c(5, 33, 100, random);
  for (const Kernel& kernel : kernels()) {
    expect_equal_bits(multiply(kernel, c.x, c.view()), c.expected(false), kernel.name);
  }
}

// |err| <= ulp_bf16(ref) / 2 + (k / 16 + 1) 2^-23 sum |x w|
TEST(random_values_stay_within_the_bound) {
  Random random(5);
  std::normal_distribution<float> normal;
  for (const int64_t m : {1, 3, 8, 17}) {
    const int64_t n = 37, k = 1000;
    Weights w(1, n, k);
    fill_like_a_model(w, random, 300);
    for (int64_t i = 0; i < n * k; ++i) {  // finite and not huge: those have tests of their own
      uint16_t& bits = w.at(0, i / k, i % k);
      if ((bits & 0x7FFF) > 0x4400) bits &= 0x8000;
    }
    Activations x(m, k);
    for (int64_t t = 0; t < m; ++t) {
      for (int64_t j = 0; j < k; ++j) x.at(t, j) = cpu::float_to_bf16(normal(random));
    }
    const PackedBytes packed = pack_by_the_book(w, -1);
    for (const Kernel& kernel : kernels()) {
      const std::vector<uint16_t> y = multiply(kernel, x, view_of(packed, n, k));
      for (int64_t t = 0; t < m; ++t) {
        for (int64_t i = 0; i < n; ++i) {
          double reference = 0, magnitude = 0;
          for (int64_t j = 0; j < k; ++j) {
            const double product = double{value_of(w.at(0, i, j))} * value_of(x.at(t, j));
            reference += product;
            magnitude += std::abs(product);
          }
          const double ulp = std::ldexp(1.0, std::ilogb(reference) - 7);
          const double bound = ulp / 2 + (k / 16.0 + 1) * 0x1p-23 * magnitude;
          const double got = value_of(y[t * n + i]);
          EXPECT(std::abs(got - reference) <= bound, kernel.name, " m ", m, ": y[", t, ", ", i,
                 "] is ", got, " instead of ", reference, ", bound ", bound);
        }
      }
    }
  }
}

// An escape replaces the decoded weight before it is multiplied: 0 * Inf and Inf - Inf are NaN as
// in a dense product, and a zero weight hides nothing.
TEST(special_values_multiply_as_in_a_dense_product) {
  const double inf = HUGE_VAL, nan = std::nan("");
  const double special[] = {0.0, -0.0, inf, -inf, nan, 1.0, -2.0};
  constexpr int64_t kKinds = std::size(special);
  // Row i has special[i] in one column, token t has special[t] there; ones elsewhere.
  for (const int64_t k : {1, 64, 100, 130}) {
    for (const int64_t column : {int64_t{0}, k / 2, k - 1}) {
      Weights w(1, kKinds, k);
      Activations x(kKinds, k);
      for (int64_t i = 0; i < kKinds; ++i) {
        for (int64_t j = 0; j < k; ++j) {
          w.at(0, i, j) = x.at(i, j) = 0x3F80;
        }
        w.at(0, i, column) = cpu::float_to_bf16(static_cast<float>(special[i]));
        x.at(i, column) = cpu::float_to_bf16(static_cast<float>(special[i]));
      }
      const PackedBytes packed = pack_by_the_book(w, -1);
      for (const Kernel& kernel : kernels()) {
        const std::vector<uint16_t> y = multiply(kernel, x, view_of(packed, kKinds, k));
        for (int64_t t = 0; t < kKinds; ++t) {
          for (int64_t i = 0; i < kKinds; ++i) {
            const double wanted = special[t] * special[i] + static_cast<double>(k - 1);
            const double got = value_of(y[t * kKinds + i]);
            const bool same = std::isnan(wanted)
                                  ? std::isnan(got)
                                  : got == value_of(cpu::float_to_bf16(static_cast<float>(wanted)));
            EXPECT(same, kernel.name, " k ", k, ": ", special[t], " * ", special[i], " gave ", got);
          }
        }
      }
    }
  }
}

TEST(subnormals_are_kept_where_the_hardware_keeps_them) {
  const uint16_t tiny[] = {0x0001, 0x8001, 0x007F, 0x0040};
  constexpr int64_t kRows = std::size(tiny), k = 70;
  Weights w(1, kRows, k);
  Activations x(1, k);
  for (int64_t j = 0; j < k; ++j) {
    for (int64_t i = 0; i < kRows; ++i) w.at(0, i, j) = j == 66 ? tiny[i] : 0;
    x.at(0, j) = 0x3F80;
  }
  const PackedBytes packed = pack_by_the_book(w, kNeutralBase);
  for (const Kernel& kernel : kernels()) {
    const std::vector<uint16_t> y = multiply(kernel, x, view_of(packed, kRows, k));
    for (int64_t i = 0; i < kRows; ++i) {
      const bool flushed = kernel.flushes_subnormals && (y[i] & 0x7FFF) == 0;
      EXPECT(y[i] == tiny[i] || flushed, kernel.name, ": ", y[i], " instead of ", tiny[i]);
    }
  }
}

TEST(rounding_is_to_nearest_even_and_nan_stays_nan) {
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const uint16_t got = cpu::float_to_bf16(cpu::bits_float(high << 16 | low));
      const bool is_nan = (high & 0x7F80) == 0x7F80 && ((high & 0x7F) != 0 || low != 0);
      if (is_nan) {
        EXPECT((got & 0x7F80) == 0x7F80 && (got & 0x7F) != 0, high, " ", low, " became ", got);
        EXPECT((got & 0x8000) == (high & 0x8000), high, " ", low, " lost its sign");
      } else {
        const bool up = low > 0x8000 || (low == 0x8000 && high % 2 == 1);
        EXPECT(got == high + up, high, " ", low, " became ", got);
      }
    }
  }
}

TEST(slices_multiply_as_their_own_matrices) {
  Random random(6);
  const ExactCase whole(4, 48, 250, random);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 4; ++c) {
      PackedView slice = whole.view();
      slice.payload = slice.tile(r, c);
      slice.index += r * slice.index_stride + c;
      slice.n = 16;
      slice.k = c == 3 ? 250 - 192 : 64;
      ExactCase part(4, 16, slice.k, random);
      for (int64_t i = 0; i < 16; ++i) {
        for (int64_t j = 0; j < slice.k; ++j) {
          part.w.at(0, i, j) = whole.w.at(0, 16 * r + i, 64 * c + j);
        }
      }
      for (const Kernel& kernel : kernels()) {
        expect_equal_bits(multiply(kernel, part.x, slice, part.bias.data()), part.expected(true),
                          join(kernel.name, " tile ", r, ", ", c));
      }
    }
  }
}

// Words that no packer writes must not lead anywhere outside the table. AddressSanitizer watches.
TEST(index_words_that_lie_read_nothing) {
  Random random(7);
  ExactCase c(3, 33, 130, random);
  const std::vector<uint32_t> words = {
      IndexWord{kRawCount, 0xFFFFFF}.bits(),
      IndexWord{64, 0xFFFFFF}.bits(),
      IndexWord{1, static_cast<uint32_t>(c.packed.escapes.size() / 4)}.bits(),
      IndexWord{65, 0}.bits(),
      IndexWord{254, 0}.bits(),
      IndexWord{0, 5}.bits()};
  for (const uint32_t word : words) {
    std::fill(c.packed.index.begin(), c.packed.index.end(), word);
    for (const Kernel& kernel : kernels()) {
      for (const uint16_t bits : multiply(kernel, c.x, c.view())) {
        EXPECT((bits & 0x7F80) != 0x7F80, kernel.name, ": payload zeros decode to finite values");
      }
    }
  }
}

}  // namespace
}  // namespace nf12::test
