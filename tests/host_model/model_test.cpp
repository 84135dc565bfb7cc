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

// The report of a kernel over one cluster of blocks of two waves, or "" if there is none.
template <typename Kernel>
std::string report_of(const Kernel& kernel, std::vector<Buffer> buffers = {}, uint64_t seed = 1,
                      int blocks = 1) {
  try {
    arch::host::run({"probe", blocks, 1, 2, seed, std::move(buffers), 0, blocks}, kernel);
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

// `kernel` in a cluster under several orders of its lanes.
template <typename Kernel>
void expect_accepted(const Kernel& kernel, std::vector<Buffer> buffers = {}, int blocks = 1) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const std::string report = report_of(kernel, buffers, seed, blocks);
    EXPECT(report.empty(), report);
  }
}

template <typename Kernel>
void expect_reported(const Kernel& kernel, const std::string& part,
                     std::vector<Buffer> buffers = {}, int blocks = 1) {
  for (uint64_t seed = 0; seed < 10; ++seed)
    expect_report(report_of(kernel, buffers, seed, blocks), part);
}

// ---- barriers ----

constexpr int kBarrier = kLanes;  // words of the array below, after a slot a lane
constexpr int kBarriers = 8;

// A barrier that all lanes have seen open.
arch::Shared<uint32_t> slots_and_barrier(int arrivals) {
  NF12_SHARED(uint32_t, slots, kLanes + kBarriers);
  if (thread() == 0) arch::open_barrier(slots, kBarrier, arrivals);
  arch::sync_block();
  return slots;
}

enum class Fault {
  kNone,
  kNoWait,
  kNoSync,
  kNoArrival,
  kWrongPhase,
  kEarlyPhase,
  kTooFew,
  kTooMany,
};

// Wave 0 writes, wave 1 reads once wave 0 has arrived: every lane, or one for all.
template <bool one_for_all>
auto hand_over(Fault fault) {
  return [fault] {
    const auto slots = slots_and_barrier(one_for_all ? 1 : arch::kWave);
    const int lane = arch::lane();
    if (arch::wave() == 0) {
      slots.store(lane, 7 * lane);
      if (one_for_all && fault != Fault::kNoSync) arch::sync_wave();
      if (lane == 0 || (!one_for_all && (lane != 9 || fault != Fault::kNoArrival)))
        arch::arrive_barrier(slots, kBarrier);
    } else {
      if (fault != Fault::kNoWait) arch::wait_barrier(slots, kBarrier, 0);
      const int from = (lane + 5) % arch::kWave;
      EXPECT(slots.load(from) == 7u * from, "not what was written");
    }
  };
}

TEST(a_barrier_brings_what_those_who_arrived_did) {
  expect_accepted(hand_over<false>(Fault::kNone));
  expect_accepted(hand_over<true>(Fault::kNone));
  expect_reported(hand_over<false>(Fault::kNoWait), "shared slots[");
  expect_reported(hand_over<true>(Fault::kNoWait), "shared slots[");
  // Lane 0 knows nothing of the others without a meeting of the wave.
  expect_reported(hand_over<true>(Fault::kNoSync), "shared slots[");
}

TEST(a_deadlock_is_reported_with_who_waits) {
  expect_reported(hand_over<false>(Fault::kNoArrival),
                  "deadlock; wave 1, lane 0 at wait_barrier for phase 0 of slots[64], which has 31 "
                  "of 32 arrivals");
}

// What one lane waited for the others of its wave do not know.
TEST(a_lane_waits_for_itself) {
  const auto wait_of_one = [](bool with_sync) {
    return [with_sync] {
      const auto slots = slots_and_barrier(1);
      if (thread() == 0) {
        slots.store(3, 3);
        arch::arrive_barrier(slots, kBarrier);
      }
      if (arch::wave() == 0) return;
      if (arch::lane() == 0) arch::wait_barrier(slots, kBarrier, 0);
      if (with_sync) arch::sync_wave();
      slots.load(3);
    };
  };
  expect_accepted(wait_of_one(true));
  expect_reported(wait_of_one(false), "shared slots[3]");
}

// A third party knows by two barriers, one after the other, what the first one did.
TEST(what_a_lane_knows_it_brings_on) {
  const auto chain = [](bool in_between) {
    return [in_between] {
      NF12_SHARED(uint32_t, slots, 16);
      const int t = thread();
      if (t == 0) {
        arch::open_barrier(slots, 8, 1);
        arch::open_barrier(slots, 10, 1);
      }
      arch::sync_block();
      if (t == 0) {
        slots.store(0, 1);
        arch::arrive_barrier(slots, 8);
      } else if (t == arch::kWave) {
        if (in_between) arch::wait_barrier(slots, 8, 0);
        arch::arrive_barrier(slots, 10);
      } else if (t == 1) {
        arch::wait_barrier(slots, 10, 0);
        slots.store(0, 2);
      }
    };
  };
  expect_accepted(chain(true));
  expect_reported(chain(false), "shared slots[0]");
}

// Wave 0 fills two slots of a ring, wave 1 empties them, ten times.
auto ring(Fault fault) {
  return [fault] {
    NF12_SHARED(uint32_t, slots, 16);  // 0, 4: slots; 8, 10: they are filled; 12, 14: emptied
    const int t = thread();
    if (t < 2) {
      arch::open_barrier(slots, 8 + 2 * t, arch::kWave);
      arch::open_barrier(slots, 12 + 2 * t, fault == Fault::kTooFew ? 8 : arch::kWave);
    }
    arch::sync_block();
    for (int i = 0; i < 10; ++i) {
      const int slot = i % 2, phase = i / 2;
      if (arch::wave() == 0) {
        const int wanted = fault == Fault::kEarlyPhase ? phase : phase - 1;
        if (phase > 0 && fault != Fault::kNoWait) arch::wait_barrier(slots, 12 + 2 * slot, wanted);
        if (arch::lane() == i) slots.store(4 * slot, 100 + i);
        arch::arrive_barrier(slots, 8 + 2 * slot);
      } else {
        const int wanted = fault == Fault::kWrongPhase && phase > 0 ? phase - 1 : phase;
        arch::wait_barrier(slots, 8 + 2 * slot, wanted);
        const uint32_t got = slots.load(4 * slot);
        EXPECT(fault != Fault::kNone || got == 100u + i, "slot ", slot, " holds ", got);
        if (fault != Fault::kNoArrival || arch::lane() != 3 || i != 4)
          arch::arrive_barrier(slots, 12 + 2 * slot);
      }
    }
  };
}

TEST(a_barrier_counts_phase_after_phase) {
  expect_accepted(ring(Fault::kNone));
  expect_reported(ring(Fault::kNoWait), "shared slots[");
  expect_reported(ring(Fault::kWrongPhase), "slots[");
  expect_reported(ring(Fault::kEarlyPhase), "for phase");  // a deadlock, or not begun
  expect_reported(ring(Fault::kTooFew), "slots[");
  expect_reported(ring(Fault::kNoArrival), "deadlock");
}

TEST(a_phase_that_parity_would_mistake_is_reported) {
  const auto wait_for = [](int phases, int phase) {
    return [=] {
      const auto slots = slots_and_barrier(kLanes);
      for (int i = 0; i < phases; ++i) arch::arrive_barrier(slots, kBarrier);
      arch::sync_block();
      arch::wait_barrier(slots, kBarrier, phase);
    };
  };
  expect_accepted(wait_for(1, 0));
  expect_accepted(wait_for(3, 2));
  expect_reported(wait_for(2, 0), "already in phase 2");
  expect_reported(wait_for(2, 3), "only in phase 2");
}

TEST(a_barrier_is_opened_once_and_before_its_use) {
  expect_reported(
      [] {
        NF12_SHARED(uint32_t, slots, 4);
        if (thread() < 2) arch::open_barrier(slots, 2, 1);
      },
      "opens the barrier at shared slots[2] twice");
  expect_reported(
      [] {
        NF12_SHARED(uint32_t, slots, 4);
        if (thread() == 0) arch::open_barrier(slots, 2, kLanes);
        arch::arrive_barrier(slots, 2);  // with no sync_block
      },
      "has not seen open");
  expect_reported(
      [] {
        NF12_SHARED(uint32_t, slots, 4);
        arch::wait_barrier(slots, 0, 0);
      },
      "has not seen open");
  expect_reported([] { slots_and_barrier(kLanes).load(kBarrier + 1); }, "is part of a barrier");
  expect_reported(
      [] {
        NF12_SHARED(uint32_t, slots, 4);
        slots.store(thread() % 2 * 2, 0);
        if (thread() == 0) arch::open_barrier(slots, 2, 1);
      },
      "slots[");
}

// ---- copies ----

struct Source {
  alignas(16) uint8_t bytes[32 * kLanes];
  Source() {
    for (size_t i = 0; i < sizeof(bytes); ++i) bytes[i] = static_cast<uint8_t>(i % 251);
  }
  uint32_t word(int i) const {
    uint32_t out;
    std::memcpy(&out, bytes + 4 * i, 4);
    return out;
  }
  std::vector<Buffer> buffers() const { return {{bytes, sizeof(bytes), false, "source"}}; }
};

TEST(groups_of_copies_land_in_their_order) {
  const Source source;
  const auto read_group = [&](int group) {
    return [&, group] {
      NF12_SHARED(uint32_t, slots, 8 * kLanes);
      for (int i = 0; i < 2; ++i) {
        const int word = 4 * (2 * thread() + i);
        arch::copy_shared16_if(true, slots, word, source.bytes + 4 * word);
        arch::close_copies();
      }
      arch::await_copies_but<1>();
      const int word = 4 * (2 * thread() + group) + 1;
      EXPECT(slots.load(word) == source.word(word), "not the bytes copied");
      arch::await_copies_but<0>();
    };
  };
  expect_accepted(read_group(0), source.buffers());
  expect_reported(read_group(1), "which nobody wrote: a copy is on its way", source.buffers());
}

TEST(a_group_that_is_not_closed_is_not_awaited) {
  const Source source;
  expect_reported(
      [&] {
        NF12_SHARED(uint32_t, slots, 4 * kLanes);
        arch::copy_shared16_if(true, slots, 4 * thread(), source.bytes + 16 * thread());
        arch::await_copies_but<0>();
        slots.load(4 * thread());
      },
      "a copy is on its way", source.buffers());
  expect_reported(
      [&] {
        NF12_SHARED(uint32_t, slots, 4 * kLanes);
        arch::copy_shared16_if(true, slots, 4 * thread(), source.bytes + 16 * thread());
      },
      "ends with copies on their way", source.buffers());
}

TEST(the_target_of_a_copy_may_not_be_touched) {
  const Source source;
  const auto touch = [&](bool write) {
    return [&, write] {
      NF12_SHARED(uint32_t, slots, 4 * kLanes);
      const int word = 4 * thread();
      for (int i = 0; i < 4; ++i) slots.store(word + i, 0);
      arch::copy_shared16_if(true, slots, word, source.bytes + 4 * word);
      if (write)
        slots.store(word + 2, 1);
      else
        slots.load(word + 3);
      arch::await_copies();
    };
  };
  expect_reported(touch(false), "a copy is on its way", source.buffers());
  expect_reported(touch(true), "a copy is on its way", source.buffers());
}

// The copy is at fault when it sets out, however late it lands.
TEST(a_copy_onto_a_word_in_use_is_reported_when_it_sets_out) {
  const Source source;
  const auto copy_over = [&](bool with_sync) {
    return [&, with_sync] {
      NF12_SHARED(uint32_t, slots, 4);
      if (thread() == 0)
        for (int i = 0; i < 4; ++i) slots.store(i, 0);
      arch::sync_block();
      if (arch::wave() == 0) slots.load(2);
      if (with_sync) arch::sync_block();
      if (thread() == kLanes - 1) {
        arch::copy_shared16_if(true, slots, 0, source.bytes);
      }
      // Long before it lands.
      arch::sync_block();
      if (thread() == kLanes - 1) arch::await_copies();
    };
  };
  expect_accepted(copy_over(true), source.buffers());
  expect_reported(copy_over(false), "slots[2]", source.buffers());
}

// Wave 0 copies, wave 1 reads.
auto copy_and_arrive(const Source& source, Fault fault) {
  return [&source, fault] {
    const auto slots = slots_and_barrier(arch::kWave);
    const int lane = arch::lane();
    if (arch::wave() == 0) {
      if (lane == 5) slots.store(40, 5);
      if (lane < 8) arch::copy_shared16_if(true, slots, 4 * lane, source.bytes + 16 * lane);
      if (fault == Fault::kTooMany)
        arch::arrive_barrier(slots, kBarrier);  // waits for no copy
      else
        arch::arrive_barrier_with_copies(slots, kBarrier);
      if (fault == Fault::kTooMany) arch::await_copies();
    } else {
      if (fault != Fault::kNoWait) arch::wait_barrier(slots, kBarrier, 0);
      EXPECT(slots.load(lane) == source.word(lane), "not the bytes copied");
      if (fault == Fault::kNoSync) slots.load(40);
    }
  };
}

TEST(a_barrier_waits_for_copies) {
  const Source source;
  expect_accepted(copy_and_arrive(source, Fault::kNone), source.buffers());
  expect_reported(copy_and_arrive(source, Fault::kNoWait), "slots[", source.buffers());
  expect_reported(copy_and_arrive(source, Fault::kTooMany), "slots[", source.buffers());
  // Such an arrival brings the copies and nothing else.
  expect_reported(copy_and_arrive(source, Fault::kNoSync), "shared slots[40]", source.buffers());
}

// A lane that has arrived with its copies may read them once it has waited for them, in either way.
TEST(a_lane_waits_for_copies_that_it_has_arrived_with) {
  const Source source;
  enum class Wait { kNone, kCopies, kBarrier };
  const auto read_own = [&](Wait wait) {
    return [&, wait] {
      const auto slots = slots_and_barrier(arch::kWave);
      if (arch::wave() == 0) {
        const int word = arch::lane() < 8 ? 4 * arch::lane() : 32;
        arch::copy_shared16_if(word < 32, slots, word, source.bytes + 4 * word);
        arch::arrive_barrier_with_copies(slots, kBarrier);
        if (wait == Wait::kCopies) arch::await_copies();
        if (wait == Wait::kBarrier) arch::wait_barrier(slots, kBarrier, 0);
        if (word < 32) slots.load(word);
      } else {
        arch::wait_barrier(slots, kBarrier, 0);
        slots.load(arch::lane());
      }
    };
  };
  expect_accepted(read_own(Wait::kCopies), source.buffers());
  expect_accepted(read_own(Wait::kBarrier), source.buffers());
  expect_reported(read_own(Wait::kNone), "slots[", source.buffers());
}

// ---- clusters ----

TEST(a_cluster_has_ranks) {
  std::array<int, 6> seen = {};
  arch::host::run({"ranks", 6, 1, 1, 1, {}, 0, 3}, [&] {
    if (arch::lane() == 0) seen[arch::block_x()] += 1 + arch::cluster_rank();
  });
  EXPECT((seen == std::array<int, 6>{1, 2, 3, 1, 2, 3}), "ranks");
  bool refused = false;
  try {
    arch::host::run({"ranks", 5, 1, 1, 1, {}, 0, 3}, [] {});
  } catch (const Report&) {
    refused = true;
  }
  EXPECT(refused, "five blocks in clusters of three");
}

constexpr int kSentBytes = 8 * kLanes;

// Every lane sends two words to the next block.
auto send_on(Fault fault, int expected = kSentBytes) {
  return [=] {
    NF12_SHARED(uint32_t, slots, 2 * kLanes + 2);
    const int counter = 2 * kLanes, t = thread(), rank = arch::cluster_rank();
    if (t == 0 && fault != Fault::kTooFew) {
      arch::open_barrier(slots, counter, 1);
      arch::expect_bytes(slots, counter, expected);
    }
    if (fault != Fault::kNoSync) arch::arrive_cluster();
    arch::sync_block();
    if (fault != Fault::kNoSync) arch::wait_cluster();
    const auto value = static_cast<uint32_t>(1000 * rank + t);
    if (fault != Fault::kNoArrival || t != 7)
      arch::send_shared8((rank + 1) % 3, slots, 2 * t, counter, {{value, ~value}});
    if (fault == Fault::kTooMany && t == 7)
      arch::send_shared8((rank + 1) % 3, slots, 2 * t, counter, {{value, ~value}});
    if (fault != Fault::kNoWait) arch::wait_barrier(slots, counter, 0);
    const int from = (t + 13) % kLanes;
    const auto wanted = static_cast<uint32_t>(1000 * ((rank + 2) % 3) + from);
    EXPECT(slots.load(2 * from) == wanted && slots.load(2 * from + 1) == ~wanted, "not what came");
  };
}

TEST(words_sent_to_another_block_come_with_its_barrier) {
  expect_accepted(send_on(Fault::kNone), {}, 3);
  expect_reported(send_on(Fault::kNoWait), "slots[", {}, 3);
  expect_reported(send_on(Fault::kNoArrival), "wants 8 bytes more", {}, 3);
  expect_reported(send_on(Fault::kNone, kSentBytes + 8), "deadlock", {}, 3);
  expect_reported(send_on(Fault::kNone, kSentBytes - 8), "slots[", {}, 3);
  expect_reported(send_on(Fault::kTooMany), "slots[", {}, 3);
}

TEST(bytes_beyond_those_expected_are_reported) {
  expect_reported(
      [] {
        NF12_SHARED(uint32_t, slots, 8);
        if (thread() == 0) {
          arch::open_barrier(slots, 6, 1);
          arch::expect_bytes(slots, 6, 8);
        }
        arch::arrive_cluster();
        arch::wait_cluster();
        const int rank = arch::cluster_rank();
        const int t = thread();
        if (t < 2) arch::send_shared8(1 - rank, slots, 2 * t, 6, {{1, 2}});
        for (int i = 0; i < 200; ++i) arch::sync_wave();  // both come while the block runs
      },
      "sends more bytes than the barrier at shared slots[6]", {}, 2);
}

TEST(an_arrival_too_many_is_reported) {
  expect_reported(
      [] {
        NF12_SHARED(uint32_t, slots, 4);
        if (thread() == 0) {
          arch::open_barrier(slots, 2, 1);
          arch::expect_bytes(slots, 2, 8);
          arch::arrive_barrier(slots, 2);
        }
      },
      "which has all its arrivals and waits for bytes");
}

TEST(a_block_is_sent_to_only_while_it_is_known_to_run) {
  expect_reported(send_on(Fault::kNoSync), "which has not been shown to run", {}, 3);
  expect_reported(send_on(Fault::kTooFew), "has not seen open", {}, 3);
  const auto send_to_one_that_leaves = [](bool late) {
    return [late] {
      NF12_SHARED(uint32_t, slots, 4);
      if (thread() == 0) {
        arch::open_barrier(slots, 2, 1);
        arch::expect_bytes(slots, 2, 8);
      }
      for (int i = 0; i < 2; ++i) {
        arch::arrive_cluster();
        arch::wait_cluster();
        if (!late) break;
      }
      if (arch::cluster_rank() == 1) return;
      for (int i = 0; late && i < 1000; ++i) arch::sync_wave();
      if (thread() == 0) arch::send_shared8(1, slots, 0, 2, {{1, 2}});
    };
  };
  expect_reported(send_to_one_that_leaves(true), "which has ended", {}, 2);
  expect_reported(send_to_one_that_leaves(false), "end", {}, 2);  // has ended, or ends before
}

TEST(the_clusters_meeting_has_two_halves) {
  expect_reported([] { arch::wait_cluster(); }, "without having arrived", {}, 2);
  expect_reported(
      [] {
        arch::arrive_cluster();
        arch::arrive_cluster();
      },
      "twice", {}, 2);
  expect_reported(
      [] {
        if (arch::lane() != 4) arch::arrive_cluster();
      },
      "uniform word", {}, 2);
  expect_reported(
      [] {
        if (arch::cluster_rank() == 0 || arch::wave() == 0) arch::arrive_cluster();
        if (arch::cluster_rank() == 0) {
          arch::wait_cluster();
        } else if (arch::wave() == 1) {
          slots_and_barrier(1);
        }
      },
      "sync_block", {}, 2);
  // The arrival is relaxed: it orders no other memory.
  expect_reported(
      [] {
        NF12_SHARED(uint32_t, slots, kLanes);
        slots.store(thread(), 1);
        arch::arrive_cluster();
        arch::wait_cluster();
        slots.load((thread() + arch::kWave) % kLanes);
      },
      "with no barrier in between", {}, 2);
}

}  // namespace
}  // namespace nf12::test
