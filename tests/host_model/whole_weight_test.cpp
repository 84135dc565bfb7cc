// The shipped whole-weight kernels (unpack, gather, pack, check), in the host model or on a card
// (machine.hpp), bit for bit against the CPU backend.
#include <algorithm>
#include <numeric>

#include "csrc/cpu/pack_base.hpp"
#include "csrc/format/escapes.hpp"
#include "csrc/gather/launch.hpp"
#include "csrc/pack/check_launch.hpp"
#include "csrc/pack/encode.hpp"
#include "csrc/pack/launch.hpp"
#include "csrc/unpack/launch.hpp"
#include "csrc/unpack/tile_kernel.hpp"
#include "tests/cpp/codec.hpp"
#include "tests/host_model/machine.hpp"

namespace nf12::test {
namespace {

using arch::host::Buffer;
using arch::host::Report;

// Runs a kernel; a report fails the test.
template <typename Params>
void run(const std::string& kernel, int64_t blocks_x, int64_t blocks_y, int waves, uint64_t seed,
         std::vector<Buffer> buffers, const Params& p, const std::function<void()>& body) {
  try {
    run_kernel({kernel, static_cast<int>(blocks_x), static_cast<int>(blocks_y), waves, seed,
                std::move(buffers)},
               p, body);
  } catch (const Report& report) {
    EXPECT(false, report.what());
  }
}

// The name of the form of a kernel that takes rows of an alignment.
std::string form_of(const char* kernel, int alignment) {
  return join("nf12_", kernel, "_a", alignment);
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

enum class Unpacking { kTilesAhead, kTileAWave };

void unpack_with(Unpacking form, int alignment, const UnpackParams& p) {
  const auto run = [&]<int a> {
    form == Unpacking::kTileAWave ? unpack_tiles<a>(p) : unpack<a>(p);
  };
  if (alignment == 16) return run.operator()<16>();
  if (alignment == 4) return run.operator()<4>();
  run.operator()<2>();
}

// Unpacks into rows with gaps, `offset` elements into a buffer; compares with the CPU.
// blocks = 0: as many as the launch wants.
void expect_unpacked_by(Unpacking form, const PackedStorage& packed, int64_t gap, int64_t offset,
                        uint64_t seed, const std::string& what, int64_t blocks = 0) {
  const PackedView& first = packed.stack.first;
  const int64_t row_stride = first.k + gap, expert_stride = first.n * row_stride + gap;
  GuardedBuffer<uint16_t> out(offset + (packed.experts - 1) * expert_stride +
                              (first.n - 1) * row_stride + first.k);
  const std::vector<uint16_t> before = out.copy();
  UnpackParams p = {packed.stack, {out.data() + offset, expert_stride, row_stride, 0, 0}, {}};
  const bool tile_a_wave = form == Unpacking::kTileAWave;
  const int64_t wanted = unpack_launch(p, packed.experts, tile_a_wave ? 1 : kUnpackTilesPerWave);
  if (blocks == 0) blocks = wanted;
  p.steps = tile_steps(packed.experts, first.n, first.k, blocks * kUnpackWaves);
  std::vector<Buffer> buffers = packed.buffers();
  buffers.push_back({out.data(), 2 * static_cast<size_t>(out.size()), true, "out"});
  const int alignment = unpack_alignment(p.out, packed.experts);
  const std::string kernel = form_of(tile_a_wave ? "unpack_tile" : "unpack", alignment);
  run(kernel, blocks, 1, kUnpackWaves, seed, buffers, p, [&] { unpack_with(form, alignment, p); });
  std::vector<uint16_t> wanted_bits = before;
  for (int64_t x = 0; x < packed.experts; ++x) {
    const std::vector<uint16_t> dense = unpack(packed.expert(x), kOneThread, cpu::Level::kPortable);
    for (int64_t row = 0; row < first.n; ++row)
      std::copy_n(dense.data() + row * first.k, first.k,
                  wanted_bits.data() + offset + x * expert_stride + row * row_stride);
  }
  expect_equal_bits(out.copy(), wanted_bits,
                    join(kernel, ": ", what, ", gap ", gap, ", offset ", offset));
}

void expect_unpacked(const PackedStorage& packed, int64_t gap, int64_t offset, uint64_t seed,
                     const std::string& what, int64_t blocks = 0) {
  for (const Unpacking form : {Unpacking::kTilesAhead, Unpacking::kTileAWave})
    expect_unpacked_by(form, packed, gap, offset, seed, what, blocks);
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
    for (const int64_t k : {64, 4}) {  // as raw tiles, and a quarter of them as lists
      if (k == 4) {
        std::shuffle(allowed.begin(), allowed.end(), Random(base));
        allowed.resize(allowed.size() / 4);
      }
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
    PackedBytes bytes = hostile(packed_bytes(w), random);
    expect_unpacked_by(Unpacking::kTilesAhead, PackedStorage(bytes, 1, 33, 200), 0, 0, random(),
                       "hostile");
    // All entries at once: which of two with one position wins is left open.
    for (size_t i = 0; i < bytes.escapes.size(); ++i)
      bytes.escapes[i] =
          Escape::from_bits(bytes.escapes[i]).value | static_cast<uint32_t>(i % kTileWeights) << 16;
    expect_unpacked_by(Unpacking::kTileAWave, PackedStorage(bytes, 1, 33, 200), 0, 0, random(),
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
  run(form_of("gather", alignment), p.blocks_x, p.blocks_y, kGatherWaves, seed, buffers, p, [&] {
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

// Everything a packing needs, and the protocol of csrc/pack/launch.hpp.
class ModelPacker {
 public:
  ModelPacker(const Weights& w, uint64_t seed)
      : w_(w),
        seed_(seed),
        tiles_(static_cast<uint32_t>(w.x * tile_rows(w.n) * tile_columns(w.k))),
        exponents_(kExponents),
        subnormal_bits_(1),
        index_(tiles_),
        hashes_(2 * int64_t{tiles_}),
        payload_(int64_t{tiles_} * kTileBytes) {
    p_.source = {w.storage->data(), w.expert_stride, w.row_stride, static_cast<int32_t>(w.n),
                 static_cast<int32_t>(w.k)};
    alignment_ = pack_alignment(p_.source, w.x);
    p_.exponents = exponents_.data();
    p_.subnormal_bits = subnormal_bits_.data();
    p_.index = index_.data();
    p_.hashes = hashes_.data();
    p_.payload = payload_.data();
  }

  // As pack() of codec.hpp. `blocks`: of every launch; same_hashes: as if all raw tiles had one;
  // before_encode: what happens to the weights meanwhile.
  PackedBytes pack(int base, int blocks, bool same_hashes = false,
                   const std::function<void()>& before_encode = {}) {
    cpu::ExponentSurvey survey = exponent_survey(blocks);
    if (base < 0) base = cpu::choose_base(survey);
    if (!cpu::base_keeps_bits(survey, base)) return {};
    p_.base = base;
    launch(form_of("pack_count", alignment_), blocks, {},
           {output(index_, "index"), output(hashes_, "hashes")},
           [this] { alignment_ == 16 ? count_escapes<16>(p_) : count_escapes<2>(p_); });
    std::vector<uint64_t> hashes(tiles_);
    if (!same_hashes) std::memcpy(hashes.data(), hashes_.data(), 8 * hashes.size());
    RawOwners owners(index_.data(), hashes.data(), tiles_);
    while (!owners.pairs().empty()) owners.answer(compared(owners.pairs(), blocks).data());
    const TablePlan table = assign_words(owners, index_.data(), tiles_);
    GuardedBuffer<uint32_t> escapes(table.quads * kEntriesPerQuad);
    p_.escapes = escapes.data();
    if (before_encode) before_encode();
    const Buffer index = input(index_, "index");
    launch(form_of("pack_encode", alignment_), blocks, {index},
           {output(payload_, "payload"), output(escapes, "escapes")},
           [this] { alignment_ == 16 ? encode<16>(p_) : encode<2>(p_); });
    use_list(table.owners, 1, blocks);
    launch("nf12_pack_raw", blocks, {index, list()}, {output(escapes, "escapes")},
           [this] { write_raw(p_); });
    return {base, payload_.copy(), index_.copy(), escapes.copy()};
  }

  cpu::ExponentSurvey exponent_survey(int blocks) {
    std::fill_n(exponents_.data(), kExponents, 0u);
    subnormal_bits_[0] = 0;
    launch(form_of("pack_survey", alignment_), blocks, {},
           {output(exponents_, "exponents"), output(subnormal_bits_, "subnormal_bits")},
           [this] { alignment_ == 16 ? survey<16>(p_) : survey<2>(p_); });
    cpu::ExponentSurvey survey;
    uint64_t exponents[kExponents];
    std::copy_n(exponents_.data(), kExponents, exponents);
    take_off_padding(w_.x, w_.n, w_.k, exponents);
    std::copy_n(exponents, kExponents, survey.counts);
    survey.subnormal_bits = subnormal_bits_[0];
    return survey;
  }

 private:
  template <typename T>
  static Buffer output(GuardedBuffer<T>& buffer, const char* name) {
    return {buffer.data(), sizeof(T) * static_cast<size_t>(buffer.size()), true, name};
  }
  template <typename T>
  static Buffer input(GuardedBuffer<T>& buffer, const char* name) {
    return {buffer.data(), sizeof(T) * static_cast<size_t>(buffer.size()), false, name};
  }
  Buffer list() { return input(*list_, "list"); }

  void launch(const std::string& name, int blocks, std::vector<Buffer> inputs,
              const std::vector<Buffer>& outputs, const std::function<void()>& kernel) {
    set_pack_steps(p_, w_.x, blocks);
    inputs.push_back(input(*w_.storage, "source"));
    inputs.insert(inputs.end(), outputs.begin(), outputs.end());
    run(name, blocks, 1, kPackWaves, seed_, inputs, p_, kernel);
  }
  void use_list(const std::vector<uint32_t>& list, int words, int blocks) {
    list_ = std::make_unique<GuardedBuffer<uint32_t>>(list.size());
    std::copy(list.begin(), list.end(), list_->data());
    p_.list = list_->data();
    p_.list_length = static_cast<uint32_t>(list.size()) / words;
    p_.list_waves = blocks * kPackWaves;
  }
  std::vector<uint32_t> compared(const std::vector<uint32_t>& pairs, int blocks) {
    use_list(pairs, 2, blocks);
    GuardedBuffer<uint32_t> differs(p_.list_length);
    p_.differs = differs.data();
    launch("nf12_pack_compare", blocks, {list()}, {output(differs, "differs")},
           [this] { compare_tiles(p_); });
    return differs.copy();
  }

  const Weights& w_;
  uint64_t seed_;
  uint32_t tiles_;
  int alignment_;
  PackParams p_ = {};
  GuardedBuffer<uint64_t> exponents_;
  GuardedBuffer<uint32_t> subnormal_bits_, index_, hashes_;
  GuardedBuffer<uint8_t> payload_;
  std::unique_ptr<GuardedBuffer<uint32_t>> list_;
};

// The weight as the CPU packs it, byte for byte.
PackedBytes expect_packed(const Weights& w, int base, int blocks, uint64_t seed,
                          const std::string& what) {
  const PackedBytes packed = ModelPacker(w, seed).pack(base, blocks);
  expect_equal_packed(packed, packed_bytes(w, base), what);
  return packed;
}

TEST(pack_of_every_shape_and_expert) {
  Random random(8);
  for (const int64_t x : {1, 3}) {
    for (const int64_t n : {1, 16, 17, 40}) {
      for (const int64_t k : {1, 8, 63, 64, 65, 130, 264}) {
        Weights w(x, n, k, random() % 2 ? 8 - k % 8 : random() % 3, random() % 2 * 8);
        fill_like_a_model(w, random, 1 + static_cast<int>(random() % 64));
        expect_packed(w, -1, 1 + static_cast<int>(random() % 2), random(), name_of(x, n, k));
      }
    }
  }
}

TEST(pack_of_every_pattern) {
  Weights w(1, 256, 256);
  std::iota(w.storage->data(), w.storage->data() + 65536, uint16_t{0});
  expect_packed(w, -1, 2, 1, "ascending");
  for (const int base : {kMinBase, kMaxBase}) {
    std::vector<uint16_t> allowed;
    for (int bits = 0; bits < 65536; ++bits)
      if (base_allows(static_cast<uint16_t>(bits), base))
        allowed.push_back(static_cast<uint16_t>(bits));
    for (const int64_t k : {64, 4}) {  // as raw tiles, and a quarter of them as lists
      if (k == 4) {
        std::shuffle(allowed.begin(), allowed.end(), Random(base));
        allowed.resize(allowed.size() / 4);
      }
      Weights some(1, (static_cast<int64_t>(allowed.size()) + k - 1) / k, k);
      std::fill_n(some.storage->data(), some.storage->size(), allowed[0]);
      std::copy(allowed.begin(), allowed.end(), some.storage->data());
      expect_packed(some, base, 2, base, join("base ", base, ", k ", k));
    }
    EXPECT(packed_bytes(w, base).base < 0, "base ", base, " loses bits");
    EXPECT(ModelPacker(w, 1).pack(base, 1).base < 0, "base ", base, " was not refused");
  }
}

TEST(pack_counts_escapes_at_each_boundary) {
  for (const int count : {0, 1, 3, 4, 5, 63, 64, 65, 1023, 1024}) {
    Weights w(1, 48, 192);
    std::fill_n(w.storage->data(), w.storage->size(), uint16_t{120 << 7});
    Random random(count);
    std::vector<int> positions(kTileWeights);
    std::iota(positions.begin(), positions.end(), 0);
    std::shuffle(positions.begin(), positions.end(), random);
    for (int i = 0; i < count; ++i)  // tile (1, 1), the others stay clean
      w.at(0, 16 + positions[i] / 64, 64 + positions[i] % 64) = static_cast<uint16_t>(i % 3);
    const PackedBytes packed = expect_packed(w, -1, 1, count, join(count, " escapes"));
    const int expected = count > kMaxListed ? static_cast<int>(kRawCount) : count;
    EXPECT(IndexWord::from_bits(packed.index[4]).count == static_cast<uint32_t>(expected), "word ",
           packed.index[4]);
  }
}

// Raw tiles of three contents, lists between them, edges whose padding counts as +0.
Weights with_equal_raw_tiles(Random& random) {
  Weights w(2, 40, 300);
  fill_like_a_model(w, random, 300);
  for (int64_t x = 0; x < w.x; ++x)
    for (int64_t r = 0; r < 3; ++r)
      for (int64_t c = 0; c < 5; ++c) {
        const uint64_t content = random() % 4;
        if (content == 3) continue;
        for (int64_t row = 16 * r; row < std::min<int64_t>(w.n, 16 * r + 16); ++row)
          for (int64_t k = 64 * c; k < std::min<int64_t>(w.k, 64 * c + 64); ++k)
            w.at(x, row, k) = content == 2 ? static_cast<uint16_t>((row * 64 + k) % 7) : 0;
        if (content == 1) w.at(x, 16 * r + 3, 64 * c + 5) = 0x8000;
      }
  return w;
}

TEST(pack_shares_equal_raw_tiles) {
  Random random(9);
  for (int round = 0; round < 4; ++round) {
    const Weights w = with_equal_raw_tiles(random);
    const PackedBytes packed = expect_packed(w, -1, 1 + round, random(), "equal raw tiles");
    size_t raw = 0;
    for (const uint32_t word : packed.index) raw += IndexWord::from_bits(word).is_raw();
    EXPECT(packed.escapes.size() < raw * 512, raw, " raw tiles share nothing");
  }
}

TEST(pack_does_not_believe_hashes) {
  Random random(10);
  const Weights w = with_equal_raw_tiles(random);
  expect_equal_packed(ModelPacker(w, 3).pack(-1, 2, true), packed_bytes(w), "all hashes equal");
}

// The bytes are then nobody's, but they stay inside (the model reports any that do not).
TEST(pack_of_weights_that_change_after_the_plan) {
  Weights w(1, 16, 128);
  std::fill_n(w.storage->data(), w.storage->size(), uint16_t{120 << 7});
  w.at(0, 3, 5) = 0;
  const PackedBytes packed = ModelPacker(w, 1).pack(
      -1, 1, false, [&] { std::fill_n(w.storage->data(), w.storage->size(), uint16_t{0}); });
  EXPECT(packed.escapes == std::vector<uint32_t>(4), "entry ", packed.escapes[0]);
}

TEST(pack_surveys_every_weight_once) {
  Random random(11);
  for (const int blocks : {1, 3}) {
    Weights w(2, 33, 100, 1);
    fill_like_a_model(w, random, 3);
    cpu::ExponentSurvey wanted;
    for (int64_t x = 0; x < w.x; ++x)
      for (const uint16_t bits : w.expert(x)) cpu::survey_weight(bits, &wanted);
    const cpu::ExponentSurvey got = ModelPacker(w, random()).exponent_survey(blocks);
    for (int i = 0; i < kExponents; ++i)
      EXPECT(got.counts[i] == wanted.counts[i], "exponent ", i, ": ", got.counts[i], ", not ",
             wanted.counts[i]);
    EXPECT(got.subnormal_bits == wanted.subnormal_bits, "subnormal bits ", got.subnormal_bits);
  }
}

// What the kernel and the host after it say of a packed stack.
std::string checked(const PackedStorage& packed, uint64_t seed, int64_t blocks = 0) {
  GuardedBuffer<uint32_t> first_bad(1);
  first_bad[0] = kNoTile;
  CheckParams p = {packed.stack, {}, first_bad.data()};
  const int64_t wanted = check_launch(p, packed.experts);
  if (blocks == 0) blocks = wanted;
  const PackedView& first = packed.stack.first;
  p.steps = tile_steps(packed.experts, first.n, first.k, blocks * kCheckWaves * arch::kWave);
  std::vector<Buffer> buffers = packed.buffers();
  buffers.push_back({first_bad.data(), 4, true, "first_bad"});
  run("nf12_check", blocks, 1, kCheckWaves, seed, buffers, p, [&] { check_tiles(p); });
  const uint32_t number = first_bad[0];
  if (number == kNoTile) return "valid";
  const int64_t c = number % p.steps.columns, row = number / p.steps.columns;
  const PackedView view = packed.expert(row / p.steps.rows);
  const int64_t r = row % p.steps.rows;
  // Exact copies in guarded memory, as a driver would bring them.
  GuardedBuffer<uint8_t> tile(kTileBytes);
  std::copy_n(view.tile(r, c), kTileBytes, tile.data());
  const TileQuads named = quads_of(view.index_word(r, c), view.quads);
  GuardedBuffer<uint32_t> quads(int64_t{named.count} * kEntriesPerQuad);
  std::copy_n(view.escapes + int64_t{named.first} * kEntriesPerQuad, quads.size(), quads.data());
  return cpu::describe(violation_of(p, number, tile.data(), view.index_word(r, c), quads.data(),
                                    packed.experts > 1));
}

std::string checked_on_cpu(const PackedStorage& packed) {
  for (int64_t x = 0; x < packed.experts; ++x) {
    const Violation violation =
        cpu::check(packed.expert(x), packed.experts > 1 ? x : -1, kOneThread);
    if (violation) return cpu::describe(violation);
  }
  return "valid";
}

// A few faults of any kind in valid weights: the first one's text is the CPU's.
TEST(check_names_the_first_violation) {
  Random random(12);
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    const int64_t x = 1 + random() % 2 * 2;
    const int64_t n = 1 + random() % 40, k = 1 + random() % 300;
    Weights w(x, n, k);
    fill_like_a_model(w, random, 1 + static_cast<int>(random() % 64));
    PackedBytes packed = packed_bytes(w);
    for (uint64_t faults = random() % 4; faults > 0; --faults) {
      const uint64_t bit = uint64_t{1} << random() % 32;
      if (random() % 3 == 0)
        packed.index[random() % packed.index.size()] ^= static_cast<uint32_t>(bit);
      else if (random() % 2 == 0 && !packed.escapes.empty())
        packed.escapes[random() % packed.escapes.size()] ^= static_cast<uint32_t>(bit);
      else
        packed.payload[random() % packed.payload.size()] ^= static_cast<uint8_t>(1 + bit % 255);
    }
    const PackedStorage storage(packed, x, n, k, random() % 2);
    const std::string wanted = checked_on_cpu(storage);
    refused += wanted != "valid";
    const std::string got = checked(storage, random(), random() % 3);
    EXPECT(got == wanted, name_of(x, n, k), ": ", got, ", not ", wanted);
  }
  EXPECT(refused > 50 && refused < 250, refused, " of 300 were refused");
}

TEST(check_of_hostile_words) {
  Random random(13);
  for (int round = 0; round < 30; ++round) {
    Weights w(1, 33, 200);
    fill_like_a_model(w, random, 30);
    const PackedStorage storage(hostile(packed_bytes(w), random), 1, 33, 200);
    EXPECT(checked(storage, random()) == checked_on_cpu(storage), checked(storage, 1), ", not ",
           checked_on_cpu(storage));
  }
}

TEST(stacks_that_fill_the_machine) {
  Random random(14);
  const int64_t n = kMachineBlocks * kTileRows - 3, k = 330;
  for (const int64_t x : {1, 2}) {
    Weights w(x, n, k, 6);
    fill_like_a_model(w, random, 200);
    const int blocks = kMachineBlocks;
    const PackedStorage packed(expect_packed(w, -1, blocks, random(), "large"), x, n, k);
    expect_unpacked(packed, 2, 0, random(), "large");
    EXPECT(checked(packed, random()) == "valid", checked(packed, random()));
    std::vector<int64_t> ids(2 * kMachineBlocks);
    for (int64_t& id : ids) id = random() % (n + 1);
    if (x == 1) expect_gathered(packed, ids, 0, 0, random());
  }
}

}  // namespace
}  // namespace nf12::test
