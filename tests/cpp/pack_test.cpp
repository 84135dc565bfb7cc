// pack and unpack against the packer by the book: bytes, not tolerances.
#include <algorithm>
#include <numeric>

#include "csrc/cpu/pack_table.hpp"
#include "csrc/format/escapes.hpp"
#include "tests/cpp/codec.hpp"

namespace nf12::test {
namespace {

// Packs on every level, with one and three threads, and compares with the book; then unpacks.
// Returns the packed bytes.
PackedBytes expect_round_trip(const Weights& w, int base, const std::string& what) {
  const PackedBytes book = pack_by_the_book(w, base);
  for (const cpu::Level level : codec_levels()) {
    for (const cpu::Parallel& parallel : {kOneThread, kThreeThreads}) {
      const std::string where =
          join(what, " ", cpu::level_name(level), " threads ", parallel.num_threads);
      expect_equal_packed(pack(w, base, parallel, level), book, where);
      if (book.base < 0) continue;
      for (int64_t x = 0; x < w.x; ++x) {
        expect_equal_bits(unpack(view_of(book, w.n, w.k, x), parallel, level), w.expert(x),
                          join(where, ", unpacked expert ", x));
      }
    }
  }
  return book;
}

int escapes_of(const PackedBytes& packed, int64_t tile) {
  return static_cast<int>(IndexWord::from_bits(packed.index[tile]).count);
}

// A weight of exponent 120 everywhere.
Weights plain(int64_t x, int64_t n, int64_t k) {
  Weights w(x, n, k);
  std::fill(w.storage->data(), w.storage->data() + w.storage->size(), uint16_t{120 << 7});
  return w;
}

TEST(every_pattern_as_a_whole_tensor) {
  Weights w(1, 256, 256);
  std::iota(w.storage->data(), w.storage->data() + 65536, uint16_t{0});
  expect_round_trip(w, -1, "ascending");
  for (int base = kMinBase; base <= kMaxBase; ++base) {
    const PackedBytes packed = expect_round_trip(w, base, join("base ", base));
    EXPECT((packed.base == 112) == (base == 112), "all patterns allow base 112 alone, not ", base);
  }
  Random random(1);
  std::shuffle(w.storage->data(), w.storage->data() + 65536, random);
  expect_round_trip(w, -1, "shuffled");
}

TEST(every_pattern_among_ordinary_weights) {
  constexpr int kEach = 16;  // patterns in a tile: it stays listed
  Weights w(1, 16, 64 * 65536 / kEach);
  Random random(2);
  fill_like_a_model(w, random, 1 << 20);
  for (int pattern = 0; pattern < 65536; ++pattern) {
    const int64_t tile = pattern / kEach;
    const int row = pattern % kEach;
    w.at(0, row, 64 * tile + (pattern * 7 + row * 13) % 64) = static_cast<uint16_t>(pattern);
  }
  const PackedBytes packed = expect_round_trip(w, -1, "mixed");
  for (size_t tile = 0; tile < packed.index.size(); ++tile) {
    EXPECT(escapes_of(packed, tile) <= kMaxListed, "tile ", tile, " is raw");
  }
}

// Every pattern that a base allows, at that base: scaled entries, subnormals and extremes included.
TEST(every_allowed_pattern_at_every_base) {
  for (int base = kMinBase; base <= kMaxBase; ++base) {
    std::vector<uint16_t> allowed;
    for (int pattern = 0; pattern < 65536; ++pattern) {
      const auto bits = static_cast<uint16_t>(pattern);
      if (base_allows(bits, base)) allowed.push_back(bits);
    }
    EXPECT(allowed.size() > 61000, "base ", base, " allows ", allowed.size());
    Weights w(1, (static_cast<int64_t>(allowed.size()) + 3) / 4, 4);  // 64 a tile: listed
    std::fill(w.storage->data(), w.storage->data() + w.storage->size(), allowed[0]);
    std::copy(allowed.begin(), allowed.end(), w.storage->data());
    const PackedBytes packed = expect_round_trip(w, base, join("base ", base));
    EXPECT(packed.base == base, "base ", base, " was refused");
  }
}

TEST(shapes_strides_and_experts) {
  Random random(4);
  for (const int64_t x : {1, 3}) {
    for (const int64_t n : {1, 15, 16, 17, 33}) {
      for (const int64_t k : {1, 2, 63, 64, 65, 130, 200}) {
        Weights w(x, n, k, random() % 3, random() % 5);
        fill_like_a_model(w, random, 1 + static_cast<int>(random() % 64));
        expect_round_trip(w, -1, join("x ", x, " n ", n, " k ", k));
      }
    }
  }
}

TEST(escapes_at_each_boundary_of_a_tile) {
  for (const int count : {0, 1, 3, 4, 5, 63, 64, 65, 1023, 1024}) {
    Weights w = plain(1, 48, 192);
    Random random(count);
    std::vector<int> positions(kTileWeights);
    std::iota(positions.begin(), positions.end(), 0);
    std::shuffle(positions.begin(), positions.end(), random);
    for (int i = 0; i < count; ++i) {  // tile (1, 1), the others stay clean
      w.at(0, 16 + positions[i] / 64, 64 + positions[i] % 64) = static_cast<uint16_t>(i % 3);
    }
    const PackedBytes packed = expect_round_trip(w, -1, join(count, " escapes"));
    const int expected = count > kMaxListed ? static_cast<int>(kRawCount) : count;
    EXPECT(escapes_of(packed, 4) == expected, "count is ", escapes_of(packed, 4));
    const size_t entries = count > kMaxListed ? 512 : (count + 3) / 4 * 4;
    EXPECT(packed.escapes.size() == entries, packed.escapes.size(), " entries");
  }
}

TEST(equal_raw_tiles_share_their_table) {
  Weights w(2, 25, 200);
  std::fill(w.storage->data(), w.storage->data() + w.storage->size(), uint16_t{0});
  w.at(1, 0, 0) = 0x8000;  // -0 differs from +0
  w.at(1, 3, 70) = 1;
  const PackedBytes packed = expect_round_trip(w, -1, "zeros");
  // The tiles of rows 16..24 and of columns 192..199 have padding, which is +0 like the rest.
  EXPECT(packed.escapes.size() == 3 * 512, packed.escapes.size(), " entries");
  EXPECT(packed.index[3] == kRawCount && packed.index[7] == kRawCount, "first quad not shared");
}

// Two tiles made to collide: each step of the hash can be undone by the next word of its chain.
TEST(raw_tiles_are_compared_by_content) {
  constexpr int kWord = 248, kNext = 252;  // of 256: neighbours in one of four chains
  Weights w(1, 32, 64);
  std::fill(w.storage->data(), w.storage->data() + w.storage->size(), uint16_t{0});
  auto* second = reinterpret_cast<uint64_t*>(w.storage->data() + kTileWeights);
  uint64_t chain = 1;
  const auto step = [](uint64_t state, uint64_t word) {
    state = (state ^ word) * 0x9E3779B97F4A7C15u;
    return state ^ state >> 29;
  };
  for (int i = 0; i < kWord; i += 4) chain = step(chain, 0);
  second[kWord] = 1;
  second[kNext] = step(chain, 0) ^ step(chain, 1);
  EXPECT(cpu::hash_tile(w.storage->data()) == cpu::hash_tile(w.storage->data() + kTileWeights),
         "the tiles were meant to collide: has the hash changed?");
  const PackedBytes packed = expect_round_trip(w, -1, "colliding tiles");
  EXPECT(packed.escapes.size() == 2 * 512, packed.escapes.size(), " entries");
}

TEST(narrow_tiles_never_need_more_than_they_have) {
  Weights w(1, 16, 5);  // 80 weights of a tile: 64 or 65 of them escapes
  for (const int count : {64, 65}) {
    for (int i = 0; i < 80; ++i) w.at(0, i / 5, i % 5) = i < count ? 0x7F80 : 0x3C00;
    const PackedBytes packed = expect_round_trip(w, -1, join(count));
    EXPECT(escapes_of(packed, 0) == (count == 64 ? 64 : 255), "count ", escapes_of(packed, 0));
  }
}

// One weight of each (exponent, mantissa) in an otherwise plain tensor, and the base it must
// choose.
struct BaseCase {
  const char* name;
  std::vector<uint16_t> weights;
  int base;
};

uint16_t weight(int exponent, int mantissa = 0) {
  return static_cast<uint16_t>(exponent << 7 | mantissa);
}

TEST(choice_of_the_base) {
  const BaseCase cases[] = {
      {"nothing escapes: nearest to 112", {weight(118)}, 112},
      {"the window moves down just enough", {weight(107), weight(115)}, 107},
      {"and up just enough", {weight(120), weight(130)}, 115},
      {"a tie goes to the nearer base", {weight(100), weight(125), weight(141)}, 112},
      {"equally near: the smaller base", {weight(111), weight(120), weight(128)}, 111},
      {"never below 96", {weight(90), weight(96)}, 96},
      {"never above 128", {weight(128), weight(143), weight(144)}, 128},
      {"an outlier that would overflow", {weight(254, 127), weight(111), weight(110)}, 112},
      {"one that just does not", {weight(252, 127), weight(111), weight(110)}, 110},
      {"a normal weight that would become subnormal", {weight(1), weight(129), weight(128)}, 112},
      {"one that just does not", {weight(3), weight(129), weight(128)}, 114},
      {"a subnormal that would lose a bit", {weight(0, 1), weight(129), weight(128)}, 112},
      {"one that has one to spare", {weight(0, 2), weight(129), weight(128)}, 113},
      {"one that has two", {weight(0, 4), weight(129), weight(128)}, 114},
      {"a subnormal that grows", {weight(0, 1), weight(110)}, 110},
      {"Inf and NaN need no room", {0x7F80, 0xFFFF, weight(100)}, 100},
      {"zeros need none either", {0x0000, 0x8000, weight(143)}, 128},
  };
  for (const BaseCase& c : cases) {
    Weights w(1, 1, static_cast<int64_t>(c.weights.size()));
    std::copy(c.weights.begin(), c.weights.end(), w.storage->data());
    const PackedBytes packed = expect_round_trip(w, -1, c.name);
    EXPECT(packed.base == c.base, c.name, ": base ", packed.base, ", not ", c.base);
  }
}

// The first guess comes from every 32nd tile; here that sample says something else than the whole.
TEST(a_wrong_guess_of_the_base_changes_nothing) {
  Weights w(1, 16, 64 * 70);
  for (int64_t row = 0; row < 16; ++row) {
    for (int64_t column = 0; column < w.k; ++column) {
      const bool is_sampled = column / 64 % 32 == 0;
      w.at(0, row, column) = weight(is_sampled ? 98 : 126 + static_cast<int>(column % 3));
    }
  }
  EXPECT(expect_round_trip(w, -1, "misleading sample").base == 113, "the sample decided");
}

TEST(large_and_random) {
  Random random(5);
  Weights w(1, 250, 2000, 48);
  fill_like_a_model(w, random, 300);
  expect_round_trip(w, -1, "mostly listed");
  for (int64_t i = 0; i < w.storage->size(); ++i) (*w.storage)[i] = static_cast<uint16_t>(random());
  expect_round_trip(w, -1, "noise");
}

// A mapped file may change between the two calls. The bytes are then nobody's, but stay inside.
TEST(weights_that_change_after_the_plan) {
  for (const cpu::Level level : codec_levels()) {
    Weights w = plain(1, 16, 64);
    w.at(0, 3, 5) = 0;
    GuardedBuffer<uint32_t> index(1), escapes(4);
    GuardedBuffer<uint8_t> payload(kTileBytes);
    const cpu::PackPlan plan = cpu::plan_pack(w.source(), -1, index.data(), kOneThread, level);
    EXPECT(plan.quads == 1, "quads ", plan.quads);
    std::fill(w.storage->data(), w.storage->data() + w.storage->size(), uint16_t{0});
    cpu::write_pack(w.source(), plan, {payload.data(), index.data(), escapes.data()}, kOneThread,
                    level);
    EXPECT(escapes[0] == 0 && escapes[3] == 0, "entries ", escapes[0], " and ", escapes[3]);
  }
}

}  // namespace
}  // namespace nf12::test
