// The host model's ballots, swaps and atomics: what they give, and what they report.
#include <string>

#include "csrc/arch/host/model.hpp"
#include "csrc/arch/target.hpp"
#include "tests/cpp/expect.hpp"

namespace nf12::test {
namespace {

using arch::host::Report;

// The report of a kernel of one block, or "" if there is none.
std::string report_of(const std::function<void()>& kernel, std::vector<arch::host::Buffer> buffers,
                      uint64_t seed = 1) {
  try {
    arch::host::run({"words", 1, 1, 2, seed, std::move(buffers)}, kernel);
  } catch (const Report& report) {
    return report.what();
  }
  return "";
}

bool says(const std::string& report, const std::string& what) {
  return report.find(what) != std::string::npos;
}

TEST(ballot_collects_every_lanes_condition) {
  for (uint64_t seed = 1; seed < 5; ++seed) {
    const std::string report = report_of(
        [] {
          const uint32_t first = arch::ballot(arch::lane() % 3 == 0);
          const uint32_t second = arch::ballot(arch::lane() == 31);
          EXPECT(first == 0x49249249u, "bits ", first);
          EXPECT(second == 0x80000000u, "bits ", second);
        },
        {}, seed);
    EXPECT(report.empty(), report);
  }
}

TEST(swap_in_quad_takes_the_neighbours_value) {
  for (uint64_t seed = 1; seed < 5; ++seed) {
    const std::string report = report_of(
        [] {
          const auto own = static_cast<uint32_t>(arch::lane());
          EXPECT(arch::swap_in_quad<1>(own) == (own ^ 1), "mask 1, lane ", own);
          EXPECT(arch::swap_in_quad<2>(own) == (own ^ 2), "mask 2, lane ", own);
          EXPECT(arch::swap_in_quad<3>(own) == (own ^ 3), "mask 3, lane ", own);
        },
        {}, seed);
    EXPECT(report.empty(), report);
  }
}

TEST(a_ballot_that_some_lanes_skip_is_reported) {
  const std::string report = report_of(
      [] {
        if (arch::lane() != 5) arch::ballot(true);
      },
      {});
  EXPECT(says(report, "ballot"), report);
}

TEST(global_atomics_may_meet_in_one_place) {
  uint64_t sum = 0;
  uint32_t bits = 0, least = 1000;
  const std::vector<arch::host::Buffer> buffers = {
      {&sum, 8, true, "sum"}, {&bits, 4, true, "bits"}, {&least, 4, true, "least"}};
  const std::string report = report_of(
      [&] {
        arch::atomic_add8(&sum, uint64_t{1} << 32 | 3);
        arch::atomic_or4(&bits, 1u << arch::lane());
        arch::atomic_min4(&least, 70 + arch::lane());
      },
      buffers);
  EXPECT(report.empty(), report);
  EXPECT(sum == (uint64_t{64} << 32 | 192) && bits == ~0u && least == 70, "sum ", sum, ", bits ",
         bits, ", least ", least);
  const std::string read_only =
      report_of([&] { arch::atomic_or4(&bits, 1); }, {{&bits, 4, false, "bits"}});
  EXPECT(says(read_only, "read-only"), read_only);
}

TEST(adds_to_shared_memory_do_not_race_with_each_other) {
  const std::string report = report_of(
      [] {
        NF12_SHARED(uint32_t, counts, 32);
        if (arch::wave() == 0) counts.store(arch::lane(), 0);
        arch::sync_block();
        counts.add(arch::lane(), 1);
        counts.add(7, 1);
        arch::sync_block();
        EXPECT(counts.load(arch::lane()) == (arch::lane() == 7 ? 66u : 2u), "lane ", arch::lane());
      },
      {});
  EXPECT(report.empty(), report);
}

TEST(adds_race_with_plain_accesses) {
  const auto report_with = [](bool before, bool after) {
    return report_of(
        [=] {
          NF12_SHARED(uint32_t, counts, 1);
          if (arch::wave() == 0 && arch::lane() == 0) counts.store(0, 0);
          if (before) arch::sync_block();
          counts.add(0, 1);
          if (after) arch::sync_block();
          counts.load(0);
        },
        {});
  };
  EXPECT(report_with(true, true).empty(), report_with(true, true));
  EXPECT(!report_with(false, true).empty(), "an add right after the zero was accepted");
  EXPECT(says(report_with(true, false), "counts[0]"), report_with(true, false));
}

TEST(adds_to_uninitialised_shared_memory_are_reported) {
  const std::string report = report_of(
      [] {
        NF12_SHARED(uint32_t, counts, 1);
        counts.add(0, 1);
      },
      {});
  EXPECT(says(report, "nobody wrote"), report);
}

}  // namespace
}  // namespace nf12::test
