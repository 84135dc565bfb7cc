// The reader's rules: each broken on its own in an otherwise valid weight, and refused by its name.
#include <algorithm>
#include <cstring>

#include "csrc/format/check.hpp"
#include "csrc/format/escapes.hpp"
#include "tests/cpp/codec.hpp"

namespace nf12::test {
namespace {

// [20, 100] at base 108 (s = 4): tile 0 lists 5 escapes, tile 1 is raw, tile 2 clean, tile 3
// lists 3.
struct Sample {
  static constexpr int64_t n = 20, k = 100;
  static constexpr int base = 108;
  static constexpr int kEntries0 = 0, kEntries3 = 8 + 512;  // in escapes
  PackedBytes packed = packed_once();

  static const PackedBytes& packed_once() {
    static const PackedBytes packed = make();
    return packed;
  }

  static PackedBytes make() {
    Weights w(1, n, k);
    Random random(9);
    for (int64_t i = 0; i < w.storage->size(); ++i) {
      (*w.storage)[i] = static_cast<uint16_t>((random() & 0x807F) | (base + random() % 16) << 7);
    }
    for (const int column : {0, 1, 7, 31, 63}) w.at(0, column % 5, column) = 0x8001;
    for (int64_t row = 0; row < 16; ++row) {
      for (int64_t column = 64; column < 80; ++column) w.at(0, row, column) = 0x4380;
    }
    for (const int column : {64, 70, 99}) w.at(0, 18, column) = 0x7F80;
    return pack_by_the_book(w, base);
  }

  Violation check(const cpu::Parallel& parallel = kOneThread) const {
    // Exact copies in guarded memory: a check that strays is seen.
    GuardedBuffer<uint8_t> payload(static_cast<int64_t>(packed.payload.size()));
    GuardedBuffer<uint32_t> index(static_cast<int64_t>(packed.index.size()));
    GuardedBuffer<uint32_t> escapes(static_cast<int64_t>(packed.escapes.size()));
    std::copy(packed.payload.begin(), packed.payload.end(), payload.data());
    std::copy(packed.index.begin(), packed.index.end(), index.data());
    std::copy(packed.escapes.begin(), packed.escapes.end(), escapes.data());
    PackedView view = view_of(packed, n, k);
    view.payload = payload.data();
    view.index = index.data();
    view.escapes = escapes.data();
    return cpu::check(view, -1, parallel);
  }
};

TEST(what_the_packer_writes_is_valid) {
  const Sample sample;
  EXPECT(sample.packed.index[0] == 5 && sample.packed.index[1] == (2 << 8 | kRawCount) &&
             sample.packed.index[2] == 0 && sample.packed.index[3] == (130 << 8 | 3),
         "the sample is not what these tests think");
  EXPECT(!sample.check(), cpu::describe(sample.check()));
  EXPECT(!sample.check(kThreeThreads), "with threads");
}

struct Fault {
  const char* name;
  void (*inject)(PackedBytes&);
  const char* text;  // what describe() says
};

// (r, c) of a tile: its number, a byte of its sign-mantissa plane, a byte of its codes.
constexpr int kTile1 = kTileBytes, kTile2 = 2 * kTileBytes, kTile3 = 3 * kTileBytes;
constexpr int kEntries3 = Sample::kEntries3;

const Fault kFaults[] = {
    {"clean word with a quad", [](PackedBytes& p) { p.index[2] = 1 << 8; },
     "index: the word of a tile without escapes must be 0: 0x100, tile (1, 0)"},
    {"count 65", [](PackedBytes& p) { p.index[2] = 65; },
     "index: count must be 0..64 or 255: 0x41, tile (1, 0)"},
    {"count 254", [](PackedBytes& p) { p.index[2] = 254; },
     "index: count must be 0..64 or 255: 0xfe, tile (1, 0)"},
    {"list past the end", [](PackedBytes& p) { p.index[3] = 131 << 8 | 3; },
     "index: quads must lie inside escapes: 0x8303, tile (1, 1)"},
    {"list half past the end", [](PackedBytes& p) { p.index[3] = 130 << 8 | 5; },
     "index: quads must lie inside escapes: 0x8205, tile (1, 1)"},
    {"raw tile past the end", [](PackedBytes& p) { p.index[1] = 4 << 8 | 255; },
     "index: quads must lie inside escapes: 0x4ff, tile (0, 1)"},
    {"farthest quad", [](PackedBytes& p) { p.index[1] = 0xFFFFFFFF; },
     "index: quads must lie inside escapes: 0xffffffff, tile (0, 1)"},
    {"truncated table", [](PackedBytes& p) { p.escapes.resize(p.escapes.size() - 4); },
     "index: quads must lie inside escapes: 0x8203, tile (1, 1)"},
    {"no table", [](PackedBytes& p) { p.escapes.clear(); },
     "index: quads must lie inside escapes: 0x5, tile (0, 0)"},
    {"spare bit 26", [](PackedBytes& p) { p.escapes[0] |= 1u << 26; },
     "escapes: bits 26..31 of an entry must be zero: 0x4008010, tile (0, 0), weight (0, 0)"},
    {"spare bit 31", [](PackedBytes& p) { p.escapes[1] |= 1u << 31; },
     "escapes: bits 26..31 of an entry must be zero: 0x80418010, tile (0, 0), weight (1, 1)"},
    {"the same position twice", [](PackedBytes& p) { p.escapes[1] = p.escapes[0]; },
     "escapes: entries of a tile must ascend: 0x8010, tile (0, 0), weight (0, 0)"},
    {"descending positions", [](PackedBytes& p) { std::swap(p.escapes[1], p.escapes[2]); },
     "escapes: entries of a tile must ascend: 0x418010, tile (0, 0), weight (1, 1)"},
    {"an entry below the last row",
     [](PackedBytes& p) { p.escapes[kEntries3 + 2] = (64 * 4 + 1) << 16 | 0x7F80; },
     "escapes: an entry must not lie in the padding: 0x1017f80, tile (1, 1), weight (20, 65)"},
    {"an entry right of the last column",
     [](PackedBytes& p) { p.escapes[kEntries3 + 2] = (64 * 2 + 36) << 16 | 0x7F80; },
     "escapes: an entry must not lie in the padding: 0xa47f80, tile (1, 1), weight (18, 100)"},
    {"an entry at the low end of the window", [](PackedBytes& p) { p.escapes[0] = 0x3800; },
     "escapes: an entry must lie outside the window: 0x3800, tile (0, 0), weight (0, 0)"},
    {"an entry at the high end of the window", [](PackedBytes& p) { p.escapes[0] = 0xBFFF; },
     "escapes: an entry must lie outside the window: 0xbfff, tile (0, 0), weight (0, 0)"},
    {"an entry that loses bits", [](PackedBytes& p) { p.escapes[0] = 0x0008; },
     "escapes: an entry times 2^-s must be exact in BF16: 0x8, tile (0, 0), weight (0, 0)"},
    {"filler of a last quad", [](PackedBytes& p) { p.escapes[7] = 1; },
     "escapes: the last quad of a tile must be filled with 0: 0x1, tile (0, 0)"},
    {"filler of the last quad of all", [](PackedBytes& p) { p.escapes[kEntries3 + 3] = 1u << 31; },
     "escapes: the last quad of a tile must be filled with 0: 0x80000000, tile (1, 1)"},
    {"sign of an escape", [](PackedBytes& p) { p.payload[64 + 1] = 0x80; },
     "payload: bits of an escape must be zero: 0x80, tile (0, 0), weight (1, 1)"},
    {"code of an escape", [](PackedBytes& p) { p.payload[1024 + 32 * 3 + 31] |= 0xF0; },
     "payload: bits of an escape must be zero: 0xf00, tile (0, 0), weight (3, 63)"},
    {"-0 in the padding of a raw tile", [](PackedBytes& p) { p.escapes[8 + 18] |= 0x8000; },
     "escapes: padding of a raw tile must be +0: 0x8000, tile (0, 1), weight (0, 100)"},
    {"a raw value that loses bits",
     [](PackedBytes& p) { p.escapes[8 + 32] = (p.escapes[8 + 32] & 0xFFFF) | 0x00010000; },
     "escapes: a raw value times 2^-s must be exact in BF16: 0x1, tile (0, 1), weight (1, 65)"},
    {"first byte of a raw tile", [](PackedBytes& p) { p.payload[kTile1] = 1; },
     "payload: bytes of a raw tile must be zero: 0x1, tile (0, 1)"},
    {"last byte of a raw tile", [](PackedBytes& p) { p.payload[kTile1 + 1535] = 0x80; },
     "payload: bytes of a raw tile must be zero: 0x80, tile (0, 1)"},
    {"mantissa below the last row", [](PackedBytes& p) { p.payload[kTile2 + 64 * 4] = 0x7F; },
     "payload: bits of the padding must be zero: 0x7f, tile (1, 0), weight (20, 0)"},
    {"code in the last row of padding", [](PackedBytes& p) { p.payload[kTile2 + 1535] = 0x10; },
     "payload: bits of the padding must be zero: 0x100, tile (1, 0), weight (31, 63)"},
    {"mantissa right of the last column", [](PackedBytes& p) { p.payload[kTile3 + 36] = 1; },
     "payload: bits of the padding must be zero: 0x1, tile (1, 1), weight (16, 100)"},
    {"code right of the last column",
     [](PackedBytes& p) { p.payload[kTile3 + 1024 + 32 * 3 + 16 + 3] = 2; },
     "payload: bits of the padding must be zero: 0x200, tile (1, 1), weight (19, 101)"},
};

TEST(each_rule_is_refused_by_name) {
  for (const Fault& fault : kFaults) {
    Sample sample;
    fault.inject(sample.packed);
    for (const cpu::Parallel& parallel : {kOneThread, kThreeThreads}) {
      const Violation violation = sample.check(parallel);
      const std::string text = violation ? cpu::describe(violation) : "accepted";
      EXPECT(text == fault.text, fault.name, ": ", text);
    }
  }
}

// Of several faults the earliest tile's is named, whatever thread finds its own first.
TEST(the_answer_is_the_same_for_any_schedule) {
  Sample sample;
  sample.packed.index[0] = 65;
  sample.packed.index[1] = 66;
  sample.packed.index[3] = 67;
  for (int i = 0; i < 50; ++i) {
    const Violation violation = sample.check(kThreeThreads);
    EXPECT(violation.value == 65, "value ", violation.value);
  }
}

TEST(a_scaled_entry_that_would_overflow) {
  Weights w(1, 1, 1);
  w.at(0, 0, 0) = 0x7F80;
  PackedBytes packed = pack_by_the_book(w, 120);  // s = -8
  EXPECT(!cpu::check(view_of(packed, 1, 1), -1, kOneThread), "Inf is valid");
  packed.escapes[0] = (254 - 8) << 7;
  EXPECT(!cpu::check(view_of(packed, 1, 1), -1, kOneThread), "exponent 254 is valid");
  packed.escapes[0] = (254 - 7) << 7;
  EXPECT(cpu::check(view_of(packed, 1, 1), -1, kOneThread), "2^128 was accepted");
}

TEST(an_expert_is_named) {
  Weights w(2, 4, 4);
  Random random(10);
  fill_like_a_model(w, random, 1 << 30);
  PackedBytes packed = pack_by_the_book(w, -1);
  packed.index[1] = 100;
  const Violation violation = cpu::check(view_of(packed, 4, 4, 1), 1, kOneThread);
  EXPECT(violation && cpu::describe(violation) ==
                          "index: count must be 0..64 or 255: 0x64, expert 1, tile (0, 0)",
         cpu::describe(violation));
}

// What the packer never writes and the format allows: slices lead to all of it.
TEST(freedoms_of_the_format) {
  Sample sample;
  sample.packed.escapes.insert(sample.packed.escapes.end(), 400, 0xFFFFFFFF);
  EXPECT(!sample.check(), "unreferenced entries: ", cpu::describe(sample.check()));

  Weights w(1, 32, 64);  // two tiles with one list
  Random random(11);
  fill_like_a_model(w, random, 1 << 30);
  w.at(0, 3, 3) = 0;
  w.at(0, 19, 3) = 0;
  PackedBytes packed = pack_by_the_book(w, -1);
  packed.index[1] = packed.index[0];
  EXPECT(!cpu::check(view_of(packed, 32, 64), -1, kOneThread), "a shared list");
  expect_equal_bits(unpack(view_of(packed, 32, 64), kOneThread, cpu::Level::kPortable), w.expert(0),
                    "a shared list");

  PackedBytes raw = {112, std::vector<uint8_t>(kTileBytes), {255}, {}};
  raw.escapes.assign(512, 0x3F803F80);  // all inside the window
  EXPECT(!cpu::check(view_of(raw, 16, 64), -1, kOneThread), "a raw tile of ordinary weights");
}

TEST(shapes) {
  constexpr PackedShape valid{.version = 1,
                              .n = 17,
                              .k = 64,
                              .base = 112,
                              .payload_tile_rows = 2,
                              .payload_tile_columns = 1,
                              .payload_tile_bytes = 1536,
                              .index_tile_rows = 2,
                              .index_tile_columns = 1,
                              .escapes_length = 8};
  static_assert(!check_shape(valid));
  const auto expect_refused = [&](int64_t PackedShape::* field, std::initializer_list<int64_t> bad,
                                  const char* tensor) {
    for (const int64_t value : bad) {
      PackedShape shape = valid;
      shape.*field = value;
      const Violation violation = check_shape(shape);
      EXPECT(violation && std::strcmp(violation.tensor, tensor) == 0, tensor, " ", value);
    }
  };
  const int64_t huge = INT64_MAX;
  expect_refused(&PackedShape::version, {0, 2, -1, huge}, "meta");
  expect_refused(&PackedShape::n, {0, -1}, "meta");
  expect_refused(&PackedShape::n, {16, 33, huge}, "payload");
  expect_refused(&PackedShape::k, {0, -64}, "meta");
  expect_refused(&PackedShape::k, {65, huge}, "payload");
  expect_refused(&PackedShape::base, {95, 129, -1, huge}, "meta");
  expect_refused(&PackedShape::payload_tile_rows, {0, 1, 3, huge}, "payload");
  expect_refused(&PackedShape::payload_tile_columns, {0, 2, huge}, "payload");
  expect_refused(&PackedShape::payload_tile_bytes, {0, 1535, 2048}, "payload");
  expect_refused(&PackedShape::index_tile_rows, {0, 1, 3}, "index");
  expect_refused(&PackedShape::index_tile_columns, {0, 2}, "index");
  expect_refused(&PackedShape::escapes_length, {1, 2, 7, (1 << 26) + 4, huge}, "escapes");
}

// No two weights that the reader accepts differ in one bit and mean the same.
TEST(every_single_bit_matters) {
  Sample sample;
  const auto view = [&] { return view_of(sample.packed, Sample::n, Sample::k); };
  const cpu::Level level = codec_levels().back();
  const std::vector<uint16_t> weights = unpack(view(), kOneThread, level);
  int accepted = 0;
  const auto flip_all = [&](auto& words, const char* tensor) {
    for (size_t bit = 0; bit < words.size() * sizeof(words[0]) * 8; ++bit) {
      auto* bytes = reinterpret_cast<uint8_t*>(words.data());
      bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      if (!cpu::check(view(), -1, kOneThread)) {
        ++accepted;
        EXPECT(unpack(view(), kOneThread, level) != weights, tensor, " bit ", bit);
      }
      bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    }
  };
  flip_all(sample.packed.payload, "payload");
  flip_all(sample.packed.index, "index");
  flip_all(sample.packed.escapes, "escapes");
  EXPECT(accepted > 1000, "only ", accepted, " flips were accepted: the test sees too little");
}

// Any number of wrong bits: the readers stay inside their tensors, and agree with themselves.
TEST(random_corruption) {
  Random random(12);
  for (int round = 0; round < 2000; ++round) {
    Sample sample;
    const auto spoil = [&](auto& words) {
      if (words.empty()) return;
      for (uint64_t i = random() % 4; i > 0; --i) {
        const uint64_t mask = random() & random() & random();
        auto& word = words[random() % words.size()];
        word = static_cast<std::remove_reference_t<decltype(word)>>(word ^ mask);
      }
    };
    if (random() % 4 == 0) sample.packed.escapes.resize(random() % 140 * 4);
    spoil(sample.packed.payload);
    spoil(sample.packed.index);
    spoil(sample.packed.escapes);
    sample.packed.base = 96 + static_cast<int>(random() % 33);
    const Violation violation = sample.check();

    GuardedBuffer<uint32_t> escapes(static_cast<int64_t>(sample.packed.escapes.size()));
    std::copy(sample.packed.escapes.begin(), sample.packed.escapes.end(), escapes.data());
    PackedView view = view_of(sample.packed, Sample::n, Sample::k);
    view.escapes = escapes.data();
    std::vector<uint16_t> first;
    for (const cpu::Level level : codec_levels()) {
      const std::vector<uint16_t> out = unpack(view, kOneThread, level);
      if (first.empty()) first = out;
      if (!violation) expect_equal_bits(out, first, join("round ", round));
      GuardedBuffer<uint16_t> row(Sample::k);
      const int64_t id = static_cast<int64_t>(random() % Sample::n);
      EXPECT(cpu::gather(view, &id, 1, row.data(), kOneThread, level) == -1, "id in range");
      const auto begin = first.begin() + id * Sample::k;
      if (!violation) expect_equal_bits(row.copy(), {begin, begin + Sample::k}, "gather");
    }
  }
}

}  // namespace
}  // namespace nf12::test
