// The host model itself: what a GPU would let pass silently must be reported, and correct kernels
// must not be.
#include "csrc/arch/host/model.hpp"

#include <array>
#include <cstring>
#include <numeric>

#include "csrc/arch/target.hpp"
#include "tests/cpp/expect.hpp"

namespace nf12::test {
namespace {

using arch::host::Buffer;
using arch::host::Launch;
using arch::host::Report;

constexpr int kLanes = 2 * arch::kWave;

// The report of a kernel over one block of two waves, or "" if there is none.
template <typename Kernel>
std::string report_of(const Kernel& kernel, std::vector<Buffer> buffers = {}, uint64_t seed = 1) {
  try {
    arch::host::run({"probe", 1, 1, 2, seed, std::move(buffers)}, kernel);
  } catch (const Report& report) {
    return report.what();
  }
  return "";
}

void expect_report(const std::string& got, const std::string& part) {
  EXPECT(got.find(part) != std::string::npos, "wanted a report with '", part, "', got '", got, "'");
}

int thread() { return arch::wave() * arch::kWave + arch::lane(); }

// Each lane reads what its neighbour wrote.
template <bool with_barrier>
void rotate(uint32_t* out) {
  NF12_SHARED(uint32_t, slots, kLanes);
  slots.store(thread(), 100 + thread());
  if (with_barrier) arch::sync_block();
  const float value = static_cast<float>(slots.load((thread() + 1) % kLanes));
  arch::store4(reinterpret_cast<float*>(out + thread()), value);
}

TEST(a_barrier_orders_shared_memory) {
  std::array<uint32_t, kLanes> out = {};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string report = report_of([&] { rotate<true>(out.data()); },
                                         {{out.data(), sizeof(out), true, "out"}}, seed);
    EXPECT(report.empty(), report);
    for (int i = 0; i < kLanes; ++i) {
      float value;
      std::memcpy(&value, &out[i], 4);
      EXPECT(value == 100 + (i + 1) % kLanes, "lane ", i, " read ", value);
    }
  }
}

TEST(a_removed_barrier_is_reported) {
  std::array<uint32_t, kLanes> out = {};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string report = report_of([&] { rotate<false>(out.data()); },
                                         {{out.data(), sizeof(out), true, "out"}}, seed);
    // Whichever lane runs first: it reads what nobody wrote, or two meet without a barrier.
    EXPECT(!report.empty(), "seed ", seed, " ran through");
    expect_report(report, "shared slots[");
    expect_report(report, "(seed " + std::to_string(seed) + ")");
  }
}

// As above, but only within a wave, or across both, and with a meeting of the wave alone.
template <int distance, bool with_sync>
std::string rotate_in_waves(uint64_t seed) {
  return report_of(
      [] {
        NF12_SHARED(uint32_t, slots, kLanes);
        slots.store(thread(), thread());
        if (with_sync) arch::sync_wave();
        const int from = (thread() / distance * distance + (thread() + 1) % distance) % kLanes;
        EXPECT(slots.load(from) == static_cast<uint32_t>(from), "lane read another's");
      },
      {}, seed);
}

TEST(a_meeting_of_the_wave_orders_its_lanes_only) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string ordered = rotate_in_waves<arch::kWave, true>(seed);
    EXPECT(ordered.empty(), ordered);
    expect_report(rotate_in_waves<arch::kWave, false>(seed), "shared slots[");
    expect_report(rotate_in_waves<kLanes, true>(seed), "shared slots[");
  }
}

TEST(halves_of_a_word_may_have_two_writers) {
  const auto halves = [](bool with_sync) {
    return report_of([with_sync] {
      NF12_SHARED(uint32_t, slots, kLanes);
      const int first = arch::wave() * arch::kWave, lane = arch::lane();
      slots.store(thread(), 0);
      if (with_sync) arch::sync_wave();
      arch::store_shared2(slots, 2 * first + lane, static_cast<uint16_t>(lane));
      arch::sync_wave();
      const uint32_t even = lane / 2 * 2;
      EXPECT(slots.load(first + lane / 2) == (even | (even + 1) << 16), "lane ", lane);
    });
  };
  EXPECT(halves(true).empty(), halves(true));
  expect_report(halves(false), "shared slots[");
}

TEST(a_copy_lands_when_it_is_awaited) {
  alignas(16) uint8_t source[16 * kLanes];
  for (int i = 0; i < 16 * kLanes; ++i) source[i] = static_cast<uint8_t>(i);
  const auto copy = [&](bool with_wait) {
    return report_of(
        [&, with_wait] {
          NF12_SHARED(uint32_t, slots, 4 * kLanes);
          arch::copy_shared16_if(true, slots, 4 * thread(), source + 16 * thread());
          if (with_wait) arch::await_copies();
          const uint32_t wanted = 0x03020100u + 0x10101010u * (thread() % 16);
          EXPECT(slots.load(4 * thread()) == wanted, "not the bytes copied");
        },
        {{source, sizeof(source), false, "source"}});
  };
  EXPECT(copy(true).empty(), copy(true));
  expect_report(copy(false), "which nobody wrote");
}

TEST(two_writers_of_one_shared_word_are_reported) {
  expect_report(report_of([] {
                  NF12_SHARED(uint32_t, slots, kLanes);
                  slots.store(thread() / 2, 1);
                }),
                "with no barrier in between");
}

TEST(a_write_after_a_read_without_a_barrier_is_reported) {
  expect_report(report_of([] {
                  NF12_SHARED(uint32_t, slots, kLanes);
                  slots.store(thread(), 1);
                  arch::sync_block();
                  slots.load((thread() + 1) % kLanes);
                  slots.store(thread(), 2);
                }),
                "with no barrier in between");
}

TEST(uninitialised_shared_memory_is_reported) {
  expect_report(report_of([] {
                  NF12_SHARED(uint32_t, slots, kLanes + 1);
                  slots.store(thread(), 1);
                  arch::sync_block();
                  slots.load(kLanes);
                }),
                "which nobody wrote");
}

TEST(shared_memory_has_bounds) {
  expect_report(report_of([] {
                  NF12_SHARED(uint32_t, slots, kLanes);
                  slots.store(thread() + 1, 1);
                }),
                "which has 64 words");
}

TEST(global_reads_outside_every_buffer_are_reported) {
  alignas(16) std::array<uint32_t, 64> table = {};
  const std::vector<Buffer> buffers = {{table.data(), sizeof(table) - 4, false, "table"}};
  expect_report(report_of([&] { arch::load16(table.data(), 16 * (arch::lane() % 16)); }, buffers),
                "outside every buffer, byte 240 of table's 252");
  expect_report(report_of([&] { arch::uniform_load<4>(table.data(), 240); }, buffers),
                "outside every buffer");
  expect_report(report_of([&] { arch::load16(table.data(), 4); }, buffers), "is not aligned to 16");
  EXPECT(report_of([&] { arch::load16(table.data(), 16 * (arch::lane() % 15)); }, buffers).empty(),
         "reads within the buffer were reported");
}

TEST(every_output_is_written_once_and_only_where_allowed) {
  std::array<uint16_t, kLanes> out = {};
  const auto write_halves = [&] { arch::store2(&out[thread() / 2], 1); };
  expect_report(report_of(write_halves, {{out.data(), sizeof(out), true, "y"}}),
                "second write to byte");
  expect_report(report_of(write_halves, {{out.data(), sizeof(out), false, "x"}}),
                "write to x, which is read-only");
}

TEST(lanes_that_disagree_on_a_uniform_value_are_reported) {
  expect_report(report_of([] { arch::in_register(arch::lane() / 31); }), "to in_register");
  std::array<uint32_t, 8> table = {};
  expect_report(report_of([&] { arch::uniform_load<1>(table.data(), 4 * (arch::lane() / 16)); },
                          {{table.data(), sizeof(table), false, "table"}}),
                "to uniform_load");
}

TEST(lanes_that_skip_a_uniform_word_are_reported) {
  expect_report(report_of([] {
                  if (arch::lane() != 5) arch::in_register(7);
                }),
                "uniform word");
}

TEST(broadcast_hands_over_one_lanes_value) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const std::string report = report_of(
        [] {
          uint32_t sum = 0;
          for (int i = 0; i < arch::kWave; ++i)
            sum += arch::broadcast(1000 * arch::wave() + arch::lane() * 3 + i, i);
          uint32_t wanted = 0;
          for (int i = 0; i < arch::kWave; ++i) wanted += 1000 * arch::wave() + 4 * i;
          EXPECT(sum == wanted, "sum ", sum, ", wanted ", wanted);
        },
        {}, seed);
    EXPECT(report.empty(), report);
  }
}

TEST(lanes_at_different_meetings_are_reported) {
  expect_report(report_of([] { arch::broadcast(1, arch::lane() < 9 ? 0 : 1); }), "broadcast (1)");
  expect_report(report_of([] {
                  if (arch::lane() != 31) arch::broadcast(1, 0);
                }),
                "the end of the kernel");
  expect_report(report_of([] {
                  if (arch::wave() == 0) arch::sync_block();
                }),
                "sync_block");
}

TEST(the_seed_decides_the_order_of_lanes) {
  const auto order = [](uint64_t seed) {
    std::vector<int> lanes;
    report_of([&] { lanes.push_back(thread()); }, {}, seed);
    return lanes;
  };
  EXPECT(order(3) == order(3), "the same seed gave two orders");
  EXPECT(order(3) != order(4), "two seeds gave one order");
  std::vector<int> ascending(kLanes);
  std::iota(ascending.begin(), ascending.end(), 0);
  EXPECT(order(3) != ascending, "the lanes were not shuffled");
}

}  // namespace
}  // namespace nf12::test
