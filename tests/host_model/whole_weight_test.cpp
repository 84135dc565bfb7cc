// The shipped whole-weight kernels (unpack, gather, pack, check) in the host model, bit for bit
// against the CPU backend.
#include <algorithm>
#include <numeric>

#include "csrc/arch/host/model.hpp"
#include "csrc/format/escapes.hpp"
#include "csrc/gather/launch.hpp"
#include "csrc/unpack/launch.hpp"
#include "tests/cpp/codec.hpp"

namespace nf12::test {
namespace {

using arch::host::Buffer;
using arch::host::Report;

// Runs a kernel; a report of the model fails the test.
void run(const std::string& name, int64_t blocks_x, int64_t blocks_y, int waves, uint64_t seed,
         std::vector<Buffer> buffers, const std::function<void()>& kernel) {
  try {
    arch::host::run({name, static_cast<int>(blocks_x), static_cast<int>(blocks_y), waves, seed,
                     std::move(buffers)},
                    kernel);
  } catch (const Report& report) {
    EXPECT(false, report.what());
  }
}

// The CPU's packer, which its own tests compare with the one by the book.
PackedBytes packed_bytes(const Weights& w, int base = -1) {
  return pack(w, base, kOneThread, cpu::Level::kPortable);
}

// Payload and index of a packed stack [x, n, k] in larger storage, so that tile rows and experts
// are strided; both 16-byte aligned, as the operators demand.
class PackedStorage {
 public:
  PackedStorage(const PackedBytes& packed, int64_t x, int64_t n, int64_t k, int64_t gap_tiles = 0)
      : experts(x), packed_(packed) {
    const int64_t rows = tile_rows(n), columns = tile_columns(k);
    const int64_t row_tiles = columns + gap_tiles;
    const int64_t expert_tiles = rows * row_tiles + gap_tiles;
    payload_ = std::make_unique<GuardedBuffer<uint8_t>>(
        ((x - 1) * expert_tiles + (rows - 1) * row_tiles + columns) * kTileBytes);
    index_ = std::make_unique<GuardedBuffer<uint32_t>>(payload_->size() / kTileBytes);
    for (int64_t i = 0; i < x * rows; ++i) {
      const int64_t at = i / rows * expert_tiles + i % rows * row_tiles;
      std::copy_n(packed.payload.data() + i * columns * kTileBytes, columns * kTileBytes,
                  payload_->data() + at * kTileBytes);
      std::copy_n(packed.index.data() + i * columns, columns, index_->data() + at);
    }
    escapes_ = std::make_unique<GuardedBuffer<uint32_t>>(packed.escapes.size());
    std::copy(packed.escapes.begin(), packed.escapes.end(), escapes_->data());
    stack = {{.payload = payload_->data(),
              .index = index_->data(),
              .escapes = escapes_->data(),
              .payload_stride_bytes = row_tiles * kTileBytes,
              .index_stride = row_tiles,
              .n = n,
              .k = k,
              .quads = static_cast<uint32_t>(packed.escapes.size() / kEntriesPerQuad),
              .base = packed.base},
             expert_tiles * kTileBytes,
             expert_tiles};
  }

  PackedView expert(int64_t x) const {
    PackedView view = stack.first;
    view.payload += x * stack.payload_expert_stride_bytes;
    view.index += x * stack.index_expert_stride;
    return view;
  }
  std::vector<Buffer> buffers() const {
    return {{payload_->data(), static_cast<size_t>(payload_->size()), false, "payload"},
            {index_->data(), 4 * static_cast<size_t>(index_->size()), false, "index"},
            {escapes_->data(), 4 * static_cast<size_t>(escapes_->size()), false, "escapes"}};
  }

  int64_t experts;
  PackedStack stack;

 private:
  PackedBytes packed_;
  std::unique_ptr<GuardedBuffer<uint8_t>> payload_;
  std::unique_ptr<GuardedBuffer<uint32_t>> index_, escapes_;
};

std::string name_of(int64_t x, int64_t n, int64_t k) { return join("[", x, ", ", n, ", ", k, "]"); }

void unpack_with(int alignment, const UnpackParams& p) {
  if (alignment == 16) return unpack<16>(p);
  if (alignment == 4) return unpack<4>(p);
  unpack<2>(p);
}

// Unpacks into rows with gaps, `offset` elements into a buffer; compares with the CPU.
// blocks = 0: as many as the launch wants.
void expect_unpacked(const PackedStorage& packed, int64_t gap, int64_t offset, uint64_t seed,
                     const std::string& what, int64_t blocks = 0) {
  const PackedView& first = packed.stack.first;
  const int64_t row_stride = first.k + gap, expert_stride = first.n * row_stride + gap;
  GuardedBuffer<uint16_t> out(offset + (packed.experts - 1) * expert_stride +
                              (first.n - 1) * row_stride + first.k);
  const std::vector<uint16_t> before = out.copy();
  UnpackParams p = {packed.stack, {out.data() + offset, expert_stride, row_stride, 0, 0}, {}};
  const int64_t wanted = unpack_launch(p, packed.experts);
  if (blocks == 0) blocks = wanted;
  p.steps = tile_steps(packed.experts, first.n, first.k, blocks * kUnpackWaves);
  std::vector<Buffer> buffers = packed.buffers();
  buffers.push_back({out.data(), 2 * static_cast<size_t>(out.size()), true, "out"});
  const int alignment = unpack_alignment(p.out, packed.experts);
  run("unpack " + what, blocks, 1, kUnpackWaves, seed, buffers, [&] { unpack_with(alignment, p); });
  std::vector<uint16_t> wanted_bits = before;
  for (int64_t x = 0; x < packed.experts; ++x) {
    const std::vector<uint16_t> dense = unpack(packed.expert(x), kOneThread, cpu::Level::kPortable);
    for (int64_t row = 0; row < first.n; ++row)
      std::copy_n(dense.data() + row * first.k, first.k,
                  wanted_bits.data() + offset + x * expert_stride + row * row_stride);
  }
  expect_equal_bits(out.copy(), wanted_bits, join(what, ", gap ", gap, ", offset ", offset));
}

TEST(unpack_gives_back_every_shape_and_expert) {
  Random random(1);
  for (const int64_t x : {1, 3}) {
    for (const int64_t n : {1, 15, 16, 17, 50}) {
      for (const int64_t k : {1, 2, 7, 8, 63, 64, 65, 130, 200, 264}) {
        Weights w(x, n, k);
        fill_like_a_model(w, random, 1 + static_cast<int>(random() % 64));
        const PackedStorage packed(packed_bytes(w), x, n, k, random() % 3);
        expect_unpacked(packed, random() % 3 * 4, random() % 2 * 8, random(), name_of(x, n, k));
        expect_unpacked(packed, random() % 9, random() % 3, random(), name_of(x, n, k));
      }
    }
  }
}

TEST(unpack_knows_every_pattern_at_every_base) {
  for (const int base : {kMinBase, 111, kNeutralBase, kMaxBase}) {
    std::vector<uint16_t> allowed;
    for (int bits = 0; bits < 65536; ++bits)
      if (base_allows(static_cast<uint16_t>(bits), base))
        allowed.push_back(static_cast<uint16_t>(bits));
    // As lists of up to 64, and as raw tiles.
    for (const int64_t k : {4, 64}) {
      if (k == 4 && base == 111) continue;
      const auto size = static_cast<int64_t>(allowed.size());
      Weights w(1, (size + k - 1) / k, k);
      std::fill_n(w.storage->data(), w.storage->size(), allowed[0]);
      std::copy(allowed.begin(), allowed.end(), w.storage->data());
      const PackedStorage packed(packed_bytes(w, base), 1, w.n, k);
      expect_unpacked(packed, 0, 0, base, join("base ", base, ", k ", k));
    }
  }
}

TEST(unpack_shares_out_tiles_to_any_grid) {
  Random random(2);
  Weights w(2, 40, 500);
  fill_like_a_model(w, random, 90);
  const PackedStorage packed(packed_bytes(w), 2, 40, 500, 1);
  for (const int64_t blocks : {1, 2, 3, 6, 7, 20})
    expect_unpacked(packed, 0, 0, random(), join(blocks, " blocks"), blocks);
}

TEST(unpack_of_a_slice_of_tile_rows) {
  Random random(3);
  Weights w(1, 70, 150);
  fill_like_a_model(w, random, 40);
  const PackedStorage packed(packed_bytes(w), 1, 70, 150);
  for (const int64_t first : {0, 1, 4}) {
    PackedStorage slice = PackedStorage(packed_bytes(w), 1, 70, 150);
    slice.stack.first = slice_tile_rows(slice.stack.first, first, 2);
    EXPECT(slice.stack.first.n == (first == 4 ? 6 : 32), "rows ", slice.stack.first.n);
    expect_unpacked(slice, 2, 0, random(), join("tile rows from ", first));
  }
}

// Any index words over any table.
PackedBytes hostile(PackedBytes packed, Random& random) {
  for (uint32_t& word : packed.index) {
    const uint32_t counts[] = {0, 1, 63, 64, 65, 254, 255, static_cast<uint32_t>(random())};
    const auto quad = static_cast<uint32_t>(random() % (packed.escapes.size() / 4 + 2));
    word = counts[random() % 8] | (random() % 4 ? quad : static_cast<uint32_t>(random())) << 8;
  }
  for (uint32_t& entry : packed.escapes) entry = static_cast<uint32_t>(random());
  return packed;
}

// Whatever the words say, the CPU and the kernel agree, and neither reads outside.
TEST(unpack_of_hostile_words) {
  Random random(4);
  for (int round = 0; round < 40; ++round) {
    Weights w(1, 33, 200);
    fill_like_a_model(w, random, 30);
    expect_unpacked(PackedStorage(hostile(packed_bytes(w), random), 1, 33, 200), 0, 0, random(),
                    "hostile");
  }
}

// Gathers with ids of a width, some outside the weight, into rows with gaps.
template <typename Id>
void expect_gathered(const PackedStorage& packed, const std::vector<Id>& ids, int64_t gap,
                     int64_t offset, uint64_t seed, int columns_blocks = 0) {
  const PackedView& view = packed.stack.first;
  const int64_t row_stride = view.k + gap, count = static_cast<int64_t>(ids.size());
  GuardedBuffer<Id> device_ids(count);
  std::copy(ids.begin(), ids.end(), device_ids.data());
  GuardedBuffer<uint16_t> out(offset + (count - 1) * row_stride + view.k);
  std::vector<uint16_t> wanted = out.copy();
  GatherParams p = {.weight = view,
                    .ids = device_ids.data(),
                    .out = out.data() + offset,
                    .out_row_stride = row_stride,
                    .count = count,
                    .id_bytes = sizeof(Id),
                    .blocks_x = 0,
                    .blocks_y = 0};
  gather_grid(p);
  if (columns_blocks != 0) {
    p.blocks_x = 3;
    p.blocks_y = columns_blocks;
  }
  std::vector<Buffer> buffers = packed.buffers();
  buffers.push_back({device_ids.data(), sizeof(Id) * ids.size(), false, "ids"});
  buffers.push_back({out.data(), 2 * static_cast<size_t>(out.size()), true, "out"});
  const int alignment = gather_alignment(p);
  run("gather", p.blocks_x, p.blocks_y, kGatherWaves, seed, buffers, [&] {
    if (alignment == 16) return gather<16>(p);
    if (alignment == 4) return gather<4>(p);
    gather<2>(p);
  });
  for (int64_t i = 0; i < count; ++i) {
    uint16_t* row = wanted.data() + offset + i * row_stride;
    if (ids[i] < 0 || ids[i] >= view.n)
      std::fill_n(row, view.k, uint16_t{0x7FFF});
    else
      cpu::gather(view, &ids[i], 1, row, kOneThread, cpu::Level::kPortable);
  }
  expect_equal_bits(out.copy(), wanted,
                    join("gather of ", count, " ids of ", sizeof(Id), " bytes, n ", view.n, ", k ",
                         view.k, ", gap ", gap));
}

TEST(gather_reads_rows_and_refuses_the_rest) {
  Random random(5);
  for (const int64_t n : {1, 16, 37}) {
    for (const int64_t k : {1, 8, 63, 64, 72, 255, 264, 1100}) {
      Weights w(1, n, k);
      fill_like_a_model(w, random, 1 + static_cast<int>(random() % 40));
      const PackedStorage packed(packed_bytes(w), 1, n, k, random() % 3);
      std::vector<int64_t> wide = {0, n - 1, -1, n, INT64_MAX, INT64_MIN, int64_t{1} << 32};
      std::vector<int32_t> narrow = {0, static_cast<int32_t>(n), -1, INT32_MIN, INT32_MAX};
      for (int i = 0; i < 3; ++i) {
        wide.push_back(random() % n);
        narrow.push_back(static_cast<int32_t>(random() % n));
      }
      expect_gathered(packed, wide, random() % 9, random() % 3, random());
      expect_gathered(packed, narrow, (8 - k % 8) % 8, 0, random());
    }
  }
}

TEST(gather_shares_out_columns_to_any_grid) {
  Random random(6);
  Weights w(1, 20, 3000);
  fill_like_a_model(w, random, 90);
  const PackedStorage packed(packed_bytes(w), 1, 20, 3000);
  for (const int blocks : {1, 2, 3, 5})
    expect_gathered(packed, std::vector<int64_t>{3, 19, 4, 0, 3}, 0, 0, random(), blocks);
}

TEST(gather_of_hostile_words) {
  Random random(7);
  for (int round = 0; round < 20; ++round) {
    Weights w(1, 33, 200);
    fill_like_a_model(w, random, 30);
    expect_gathered(PackedStorage(hostile(packed_bytes(w), random), 1, 33, 200),
                    std::vector<int32_t>{0, 5, 17, 32}, 0, 0, random());
  }
}

}  // namespace
}  // namespace nf12::test
