// unpack and gather: slices, strides, bad ids, and tables that lie.
#include <algorithm>
#include <limits>

#include "csrc/format/escapes.hpp"
#include "tests/cpp/codec.hpp"

namespace nf12::test {
namespace {

// 3 x 4 tiles, the last ones partial: clean, listed and raw ones.
struct Sample {
  static constexpr int64_t n = 45, k = 250;
  Weights w{1, n, k};
  PackedBytes packed;

  Sample() {
    Random random(7);
    fill_like_a_model(w, random, 1000);
    for (int64_t row = 16; row < 32; ++row) {
      for (int64_t column = 64; column < 128; ++column) {  // NaN: other bits in every row
        w.at(0, row, column) = static_cast<uint16_t>(0x7F81 + (64 * row + column) % 119);
      }
    }
    packed = pack_by_the_book(w, -1);
  }
};

std::vector<uint16_t> block(const Weights& w, int64_t row, int64_t rows, int64_t column,
                            int64_t columns) {
  std::vector<uint16_t> out;
  for (int64_t i = row; i < row + rows; ++i) {
    for (int64_t j = column; j < column + columns; ++j) out.push_back(w.at(0, i, j));
  }
  return out;
}

TEST(slices_are_views) {
  const Sample sample;
  for (const cpu::Level level : codec_levels()) {
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t c = 0; c < 4; ++c) {
        PackedView slice = view_of(sample.packed, Sample::n, Sample::k);
        slice.payload = slice.tile(r, c);
        slice.index += r * slice.index_stride + c;
        slice.n = Sample::n - 16 * r;
        slice.k = Sample::k - 64 * c;
        expect_equal_bits(unpack(slice, kThreeThreads, level),
                          block(sample.w, 16 * r, slice.n, 64 * c, slice.k),
                          join("tiles from ", r, ", ", c));
        if (c == 3) continue;
        slice.n = std::min<int64_t>(16, slice.n);
        slice.k = 64;
        expect_equal_bits(unpack(slice, kOneThread, level),
                          block(sample.w, 16 * r, slice.n, 64 * c, 64), join("tile ", r, ", ", c));
      }
    }
  }
}

TEST(tile_rows_may_repeat) {
  const Sample sample;
  PackedView view = view_of(sample.packed, Sample::n, Sample::k);
  view.payload_stride_bytes = 0;  // an expanded tensor
  view.index_stride = 0;
  for (const cpu::Level level : codec_levels()) {
    const std::vector<uint16_t> out = unpack(view, kOneThread, level);
    for (int64_t row = 0; row < Sample::n; ++row) {
      const auto first = out.begin() + row * Sample::k;
      expect_equal_bits({first, first + Sample::k}, block(sample.w, row % 16, 1, 0, Sample::k),
                        join("row ", row));
    }
  }
}

template <typename Id>
void expect_rows(const Sample& sample, const std::vector<Id>& ids) {
  const PackedView view = view_of(sample.packed, Sample::n, Sample::k);
  const auto count = static_cast<int64_t>(ids.size());
  std::vector<uint16_t> wanted;
  for (const Id id : ids) {
    const std::vector<uint16_t> row = block(sample.w, id, 1, 0, Sample::k);
    wanted.insert(wanted.end(), row.begin(), row.end());
  }
  for (const cpu::Level level : codec_levels()) {
    for (const cpu::Parallel& parallel : {kOneThread, kThreeThreads}) {
      GuardedBuffer<uint16_t> out(count * Sample::k);
      const int64_t bad = cpu::gather(view, ids.data(), count, out.data(), parallel, level);
      EXPECT(bad == -1, "position ", bad, " called out of range");
      expect_equal_bits(out.copy(), wanted, join(count, " ids"));
    }
  }
}

TEST(gather_takes_rows_in_any_order) {
  const Sample sample;
  expect_rows<int64_t>(sample, {});
  expect_rows<int32_t>(sample, {44});
  expect_rows<int64_t>(sample, {0, 44, 16, 16, 31, 1, 0, 15, 32});
  std::vector<int32_t> all;
  for (int i = 0; i < Sample::n; ++i) all.push_back(i * 7 % Sample::n);
  expect_rows(sample, all);
}

template <typename Id>
void expect_bad(const std::vector<Id>& ids, int64_t wanted) {
  const Sample sample;
  const PackedView view = view_of(sample.packed, Sample::n, Sample::k);
  const auto count = static_cast<int64_t>(ids.size());
  GuardedBuffer<uint16_t> out(count * Sample::k);
  for (const cpu::Level level : codec_levels()) {
    const int64_t bad = cpu::gather(view, ids.data(), count, out.data(), kThreeThreads, level);
    EXPECT(bad == wanted, "position ", bad, ", not ", wanted);
  }
}

TEST(gather_names_the_first_bad_id) {
  expect_bad<int64_t>({0, Sample::n, -1}, 1);
  expect_bad<int32_t>({-1}, 0);
  expect_bad<int64_t>({3, 4, std::numeric_limits<int64_t>::min()}, 2);
  expect_bad<int64_t>({3, std::numeric_limits<int64_t>::max()}, 1);
  expect_bad<int64_t>({(int64_t{1} << 32) + 3}, 0);  // 3 if it were cut to 32 bits
  expect_bad<int32_t>({std::numeric_limits<int32_t>::max()}, 0);
}

// Words no checked weight has. Nothing is promised of the tile but that it is read and written in
// bounds, and that the other tiles are right.
TEST(words_that_point_outside_the_table) {
  for (const uint32_t word : {0xFFFFFFFFu, 0x000000FFu, 0xFFFFFF40u, 0x00000141u, 0x00000050u,
                              0x000001FEu, 0x00000201u, 0x00000205u, 0x00000105u, 0x00000300u}) {
    Weights w(1, 32, 128);
    Random random(8);
    fill_like_a_model(w, random, 1 << 30);
    w.at(0, 0, 0) = 0;  // tile 0 is listed, one quad
    PackedBytes packed = pack_by_the_book(w, -1);
    std::vector<uint32_t> table = {packed.escapes.begin(), packed.escapes.end()};
    GuardedBuffer<uint32_t> escapes(static_cast<int64_t>(table.size()));
    std::copy(table.begin(), table.end(), escapes.data());
    packed.index[2] = word;
    PackedView view = view_of(packed, 32, 128);
    view.escapes = escapes.data();
    for (const cpu::Level level : codec_levels()) {
      const std::vector<uint16_t> out = unpack(view, kOneThread, level);
      const std::vector<uint16_t> upper(out.begin(), out.begin() + 16 * 128);
      expect_equal_bits(upper, block(w, 0, 16, 0, 128), join("word ", word));
      GuardedBuffer<uint16_t> rows(2 * 128);
      const int64_t ids[] = {16, 31};
      EXPECT(cpu::gather(view, ids, 2, rows.data(), kOneThread, level) == -1, "ids are in range");
    }
  }
}

}  // namespace
}  // namespace nf12::test
