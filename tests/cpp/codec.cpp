#include "tests/cpp/codec.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "csrc/format/escapes.hpp"

namespace nf12::test {

Weights::Weights(int64_t x, int64_t n, int64_t k, int64_t row_gap, int64_t expert_gap)
    : x(x), n(n), k(k), row_stride(k + row_gap), expert_stride(n * row_stride + expert_gap) {
  storage =
      std::make_unique<GuardedBuffer<uint16_t>>((x - 1) * expert_stride + (n - 1) * row_stride + k);
}

std::vector<uint16_t> Weights::expert(int64_t index) const {
  std::vector<uint16_t> dense;
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t column = 0; column < k; ++column) dense.push_back(at(index, row, column));
  }
  return dense;
}

void fill_like_a_model(Weights& w, Random& random, int rarity) {
  for (int64_t x = 0; x < w.x; ++x) {
    for (int64_t row = 0; row < w.n; ++row) {
      for (int64_t column = 0; column < w.k; ++column) {
        const uint64_t bits = random();
        const uint64_t exponent = 112 + (bits >> 32 & 15);
        const uint64_t usual = (bits & 0x807F) | exponent << 7;
        const bool is_rare = (bits >> 40) % rarity == 0;
        w.at(x, row, column) = static_cast<uint16_t>(is_rare ? bits >> 16 : usual);
      }
    }
  }
}

PackedBytes pack(const Weights& w, int base, const cpu::Parallel& parallel, cpu::Level level) {
  const int64_t tiles = w.x * tile_rows(w.n) * tile_columns(w.k);
  GuardedBuffer<uint32_t> index(tiles);
  const cpu::PackPlan plan = cpu::plan_pack(w.source(), base, index.data(), parallel, level);
  if (plan.status != cpu::PackStatus::kOk) return {};
  GuardedBuffer<uint8_t> payload(tiles * kTileBytes);
  GuardedBuffer<uint32_t> escapes(plan.quads * kEntriesPerQuad);
  cpu::write_pack(w.source(), plan, {payload.data(), index.data(), escapes.data()}, parallel,
                  level);
  return {plan.base, payload.copy(), index.copy(), escapes.copy()};
}

namespace {

double value_of(uint16_t bits) {
  const uint32_t exponent = bits >> 7 & 0xFF;
  const uint32_t mantissa = bits & 0x7F;
  const double magnitude = exponent == 0
                               ? std::ldexp(mantissa, -133)
                               : std::ldexp(128 + mantissa, static_cast<int>(exponent) - 134);
  return bits & 0x8000 ? -magnitude : magnitude;
}

bool is_finite(uint16_t bits) { return (bits >> 7 & 0xFF) != 0xFF; }
bool is_normal(uint16_t bits) { return is_finite(bits) && (bits >> 7 & 0xFF) != 0; }

// The BF16 pattern of a value that is one of them exactly, found among all; -1 if none is.
int pattern_of(double value) {
  static const auto patterns = [] {
    std::map<double, int> all;
    for (int bits = 0; bits < 0x8000; ++bits) {
      if (is_finite(static_cast<uint16_t>(bits))) all[value_of(static_cast<uint16_t>(bits))] = bits;
    }
    return all;
  }();
  const auto found = patterns.find(std::fabs(value));
  if (found == patterns.end()) return -1;
  return found->second | (std::signbit(value) ? 0x8000 : 0);
}

// The pattern of w * 2^s, or -1 where the format forbids it.
int table_value(uint16_t bits, int base) {
  if (!is_finite(bits)) return bits;
  const int scaled = pattern_of(std::ldexp(value_of(bits), 112 - base));
  if (scaled < 0) return -1;
  return is_normal(bits) && !is_normal(static_cast<uint16_t>(scaled)) ? -1 : scaled;
}

bool is_coded(uint16_t bits, int base) {
  const int code = (bits >> 7 & 0xFF) - base;
  return code >= 0 && code < 16;
}

// The pattern of w * 2^s of every weight at a base, coded or not; -1 where it is forbidden.
std::vector<int> scaled_patterns(int base) {
  std::vector<int> scaled(65536);
  for (int bits = 0; bits < 65536; ++bits) {
    const auto w = static_cast<uint16_t>(bits);
    scaled[bits] =
        is_coded(w, base) ? pattern_of(std::ldexp(value_of(w), 112 - base)) : table_value(w, base);
  }
  return scaled;
}

// How often each pattern occurs: the choice of the base looks at these, not at every weight.
std::map<uint16_t, uint64_t> count_patterns(const Weights& w) {
  std::vector<uint64_t> counts(65536);
  for (int64_t x = 0; x < w.x; ++x) {
    for (int64_t row = 0; row < w.n; ++row) {
      for (int64_t column = 0; column < w.k; ++column) ++counts[w.at(x, row, column)];
    }
  }
  std::map<uint16_t, uint64_t> met;
  for (int bits = 0; bits < 65536; ++bits) {
    if (counts[bits] != 0) met[static_cast<uint16_t>(bits)] = counts[bits];
  }
  return met;
}

int best_base(const Weights& w, int wanted) {
  const auto patterns = count_patterns(w);
  auto best = std::tuple(~uint64_t{0}, 0, -1);
  for (int base = 96; base <= 128; ++base) {
    if (wanted >= 0 && base != wanted) continue;
    uint64_t escapes = 0;
    bool is_allowed = true;
    for (const auto& [bits, count] : patterns) {
      if (!is_coded(bits, base)) escapes += count;
      is_allowed = is_allowed && base_allows(bits, base);
    }
    if (is_allowed) best = std::min(best, std::tuple(escapes, std::abs(base - 112), base));
  }
  return std::get<2>(best);
}

}  // namespace

bool base_allows(uint16_t bits, int base) {
  return is_coded(bits, base) || table_value(bits, base) >= 0;
}

PackedBytes pack_by_the_book(const Weights& w, int wanted) {
  PackedBytes packed;
  packed.base = best_base(w, wanted);
  if (packed.base < 0) return {};
  const std::vector<int> scaled = scaled_patterns(packed.base);
  std::map<std::vector<uint32_t>, uint32_t> raw_quads;
  for (int64_t x = 0; x < w.x; ++x) {
    for (int64_t r = 0; r < (w.n + 15) / 16; ++r) {
      for (int64_t c = 0; c < (w.k + 63) / 64; ++c) {
        std::vector<uint8_t> tile(1536);
        std::vector<uint32_t> list, raw(512);
        for (int position = 0; position < 1024; ++position) {
          const int row = position / 64, column = position % 64;
          if (16 * r + row >= w.n || 64 * c + column >= w.k) continue;
          const uint16_t bits = w.at(x, 16 * r + row, 64 * c + column);
          const auto value = static_cast<uint32_t>(scaled[bits]);
          raw[position / 2] |= value << 16 * (position % 2);
          if (!is_coded(bits, packed.base)) {
            list.push_back(static_cast<uint32_t>(position) << 16 | value);
            continue;
          }
          tile[position] = static_cast<uint8_t>((bits >> 15) << 7 | (bits & 0x7F));
          const int code = (bits >> 7 & 0xFF) - packed.base;
          const int bit = 16 * (column % 2) + 4 * (column % 8 / 2);
          const int byte = 1024 + 32 * row + 4 * (column / 8) + bit / 8;
          tile[byte] = static_cast<uint8_t>(tile[byte] | code << bit % 8);
        }
        const auto quad = static_cast<uint32_t>(packed.escapes.size() / 4);
        uint32_t word = 0;
        if (list.size() > 64) {
          const auto [place, is_new] = raw_quads.emplace(raw, quad);
          if (is_new) packed.escapes.insert(packed.escapes.end(), raw.begin(), raw.end());
          word = place->second << 8 | 255;
          tile.assign(1536, 0);
        } else if (!list.empty()) {
          word = quad << 8 | static_cast<uint32_t>(list.size());
          list.resize((list.size() + 3) / 4 * 4);
          packed.escapes.insert(packed.escapes.end(), list.begin(), list.end());
        }
        packed.index.push_back(word);
        packed.payload.insert(packed.payload.end(), tile.begin(), tile.end());
      }
    }
  }
  return packed;
}

PackedView view_of(const PackedBytes& packed, int64_t n, int64_t k, int64_t expert) {
  const int64_t rows = tile_rows(n), columns = tile_columns(k);
  return {.payload = packed.payload.data() + expert * rows * columns * kTileBytes,
          .index = packed.index.data() + expert * rows * columns,
          .escapes = packed.escapes.data(),
          .payload_stride_bytes = columns * kTileBytes,
          .index_stride = columns,
          .n = n,
          .k = k,
          .quads = static_cast<uint32_t>(packed.escapes.size() / kEntriesPerQuad),
          .base = packed.base};
}

PackedView weight_of(int64_t n, int64_t k) {
  PackedView w = {};
  w.n = n;
  w.k = k;
  w.index_stride = tile_columns(k);
  w.payload_stride_bytes = w.index_stride * kTileBytes;
  return w;
}

std::vector<uint16_t> unpack(const PackedView& view, const cpu::Parallel& parallel,
                             cpu::Level level) {
  GuardedBuffer<uint16_t> out(view.n * view.k);
  cpu::unpack(view, out.data(), parallel, level);
  return out.copy();
}

std::vector<cpu::Level> codec_levels() {
  std::vector<cpu::Level> levels;
  for (const cpu::Level level : supported_levels()) {
    if (level <= cpu::Level::kAvx2) levels.push_back(level);
  }
  return levels;
}

namespace {

template <typename T>
void expect_equal(const std::vector<T>& got, const std::vector<T>& wanted,
                  const std::string& what) {
  EXPECT(got.size() == wanted.size(), what, ": length ", got.size(), ", not ", wanted.size());
  const size_t size = std::min(got.size(), wanted.size());
  size_t differences = 0, first = size;
  for (size_t i = size; i-- > 0;) {
    if (got[i] == wanted[i]) continue;
    ++differences;
    first = i;
  }
  EXPECT(differences == 0, what, ": ", differences, " differences, first at ", first, ": ",
         std::hex, uint64_t{got[first]}, ", not ", uint64_t{wanted[first]});
}

}  // namespace

void expect_equal_bits(const std::vector<uint16_t>& got, const std::vector<uint16_t>& wanted,
                       const std::string& what) {
  expect_equal(got, wanted, what);
}

void expect_equal_packed(const PackedBytes& got, const PackedBytes& wanted,
                         const std::string& what) {
  EXPECT(got.base == wanted.base, what, ": base ", got.base, ", not ", wanted.base);
  expect_equal(got.index, wanted.index, what + ", index");
  expect_equal(got.escapes, wanted.escapes, what + ", escapes");
  expect_equal(got.payload, wanted.payload, what + ", payload");
}

}  // namespace nf12::test
