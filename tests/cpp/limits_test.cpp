// Sizes past 2^31 and the end of the side table, without the memory that they stand for: reserved
// addresses of which only the touched pages exist, and one small file mapped again and again.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

#include "csrc/cpu/pack_source.hpp"
#include "csrc/cpu/pack_table.hpp"
#include "csrc/format/escapes.hpp"
#include "tests/cpp/codec.hpp"

namespace nf12::test {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// Zeros until written.
class ReservedMemory {
 public:
  explicit ReservedMemory(int64_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT(data_ != MAP_FAILED, "cannot reserve ", bytes, " bytes of addresses");
  }
  ~ReservedMemory() { munmap(data_, bytes_); }
  ReservedMemory(const ReservedMemory&) = delete;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  int64_t bytes_;
  void* data_;
};

TEST(the_table_ends_at_2_to_24_quads) {
  constexpr int64_t kTiles = kMaxQuads / 16;  // of 64 escapes each
  cpu::PackSource source{nullptr, 1, kTiles * kTileRows, kTileColumns, 0, kTileColumns};
  std::vector<uint32_t> index(kTiles, kMaxListed);
  EXPECT(cpu::assign_quads(source, index.data()) == kMaxQuads, "a full table");
  EXPECT(index.back() == ((kMaxQuads - 16) << 8 | 64), "last word ", index.back());

  source.n += 1;  // one more tile, with one escape
  index.assign(kTiles + 1, kMaxListed);
  index.back() = 1;
  EXPECT(cpu::assign_quads(source, index.data()) == kMaxQuads + 1, "one quad too many");
}

TEST(a_last_raw_tile_must_fit_too) {
  constexpr int64_t kTiles = kMaxQuads / 16;
  for (const int64_t removed : {7, 8, 9}) {
    const int64_t listed = kTiles - removed;
    const ReservedMemory weights((listed + 1) * kTileWeights * 2);
    const cpu::PackSource source{weights.as<uint16_t>(), 1, (listed + 1) * kTileRows,
                                 kTileColumns,           0, kTileColumns};
    std::vector<uint32_t> index(listed + 1, kMaxListed);
    index.back() = 1024;
    const int64_t quads = cpu::assign_quads(source, index.data());
    EXPECT((quads <= kMaxQuads) == (removed >= 8), removed, " removed: ", quads, " quads");
  }
}

TEST(source_offsets_past_2_to_31) {
  const int64_t n = 48, k = kGiB;  // 2^30 columns a row
  const ReservedMemory weights(n * k * 2);
  const cpu::PackSource source{weights.as<uint16_t>(), 1, n, k, 0, k};
  const int64_t tiles = cpu::tile_grid(source).tiles();
  const cpu::SourceTile last = cpu::source_tile(source, tiles - 1);
  EXPECT(last.w - source.weight == 32 * k + k - 64, "offset ", last.w - source.weight);
  weights.as<uint16_t>()[(n - 1) * k + k - 1] = 0x1234;
  uint16_t copy[kTileWeights];
  last.copy_to(copy, 0);
  EXPECT(copy[kTileWeights - 1] == 0x1234, "last weight ", copy[kTileWeights - 1]);

  cpu::RawTiles raw(source);
  EXPECT(raw.find_or_add(0, 5) == 5, "new");
  EXPECT(raw.find_or_add(tiles - 1, 6) == 6, "the last tile differs");
  EXPECT(raw.find_or_add(tiles - 2, 7) == 5, "the one before equals the first");
}

TEST(payload_offsets_past_2_to_32) {
  const int64_t n = 16 * 1024, k = 64 * 4096;  // 6 GiB of payload, 2^32 weights
  const int64_t columns = tile_columns(k), tiles = tile_rows(n) * columns;
  const ReservedMemory payload(tiles * kTileBytes), index(tiles * 4);
  const uint32_t escapes[4] = {(64 * 15 + 63) << 16 | 0x7FC0};
  PackedView view{payload.as<uint8_t>(),
                  index.as<uint32_t>(),
                  escapes,
                  columns * kTileBytes,
                  columns,
                  n,
                  k,
                  1,
                  112};
  payload.as<uint8_t>()[(tiles - 1) * kTileBytes + sign_mantissa_byte(15, 62)] = 0x81;
  index.as<uint32_t>()[tiles - 1] = 1;
  EXPECT(!cpu::check(view, -1, kOneThread), "valid");
  for (const cpu::Level level : codec_levels()) {
    std::vector<uint16_t> out(k);
    const int64_t id = n - 1;
    EXPECT(cpu::gather(view, &id, 1, out.data(), kOneThread, level) == -1, "in range");
    EXPECT(out[k - 2] == 0xB801 && out[k - 1] == 0x7FC0, "got ", out[k - 2], " ", out[k - 1]);
  }
  payload.as<uint8_t>()[(tiles - 1) * kTileBytes + sign_mantissa_byte(15, 63)] = 1;
  const Violation violation = cpu::check(view, -1, kThreeThreads);
  EXPECT(violation.row == n - 1 && violation.column == k - 1, cpu::describe(violation));
}

}  // namespace
}  // namespace nf12::test
