// The machine itself: what it must report, and what it must not. The trap comes last: nothing runs
// on the card after it.
#include "tests/nvidia/probes.hpp"

#include <string>
#include <vector>

#include "tests/cpp/expect.hpp"
#include "tests/host_model/machine.hpp"

namespace nf12::test {
namespace {

constexpr size_t kBytes = 100;

// The report of a probe on two buffers, or "".
std::string report_of(const char* kernel, int64_t at, std::vector<uint8_t>& out,
                      std::vector<uint8_t>& in, bool writable = true) {
  const ProbeParams p = {out.data(), in.data(), at, 7};
  try {
    run_kernel({kernel,
                1,
                1,
                1,
                0,
                {{out.data(), kBytes, writable, "out"}, {in.data(), kBytes, false, "in"}}},
               p, {});
  } catch (const arch::host::Report& report) {
    return report.what();
  }
  return "";
}

struct Buffers {
  std::vector<uint8_t> out = std::vector<uint8_t>(kBytes, 1), in = std::vector<uint8_t>(kBytes, 2);
};

TEST(a_store_in_the_output_comes_back) {
  for (const int64_t at : {0, 99}) {
    Buffers b;
    const std::string report = report_of("nf12_probe_store", at, b.out, b.in);
    EXPECT(report.empty(), report);
    EXPECT(b.out[at] == 7 && b.out[50] == 1, "byte ", int{b.out[at]});
  }
}

TEST(a_store_beside_the_output_is_reported) {
  for (const int64_t at : {-1, 100, 300}) {
    Buffers b;
    const std::string report = report_of("nf12_probe_store", at, b.out, b.in);
    EXPECT(report.find("written outside") != std::string::npos, at, ": ", report);
    EXPECT(report.find("byte " + std::to_string(at) + " of out") != std::string::npos, report);
  }
}

TEST(a_store_in_an_input_is_reported) {
  Buffers b;
  const std::string report = report_of("nf12_probe_store", 3, b.out, b.in, false);
  EXPECT(report.find("byte 3 of out") != std::string::npos, report);
  EXPECT(b.out[3] == 1, "it came back");
}

TEST(an_unknown_kernel_is_reported) {
  Buffers b;
  EXPECT(!report_of("nf12_probe_of_nothing", 0, b.out, b.in).empty(), "it ran");
}

TEST(blocks_come_in_clusters) {
  Buffers b;
  const ProbeParams p = {b.out.data(), b.in.data(), 0, 7};
  for (const int blocks : {1, 3}) {
    run_kernel({"nf12_probe_cluster",
                6,
                1,
                1,
                0,
                {{b.out.data(), kBytes, true, "out"}, {b.in.data(), kBytes, false, "in"}},
                0,
                blocks},
               p, {});
    for (int i = 0; i < 6; ++i)
      EXPECT(b.out[i] == 7 + i % blocks, "block ", i, " has rank ", b.out[i] - 7);
  }
}

TEST(a_trap_is_reported) {
  Buffers b;
  const std::string report = report_of("nf12_probe_trap", 0, b.out, b.in);
  EXPECT(report.find("nf12_probe_trap: ") == 0, report);
}

}  // namespace
}  // namespace nf12::test
