// Nothing but a copy that a barrier orders. scripts/prove_nvidia.py sees by it whether a sanitizer
// follows such barriers at all.
#include <algorithm>
#include <vector>

#include "tests/cpp/expect.hpp"
#include "tests/host_model/machine.hpp"
#include "tests/nvidia/probes.hpp"

namespace nf12::test {
namespace {

TEST(a_wave_reads_what_another_one_copied) {
  constexpr size_t kBytes = 2048;
  alignas(16) static uint8_t in[kBytes], out[kBytes];
  for (size_t i = 0; i < kBytes; ++i) in[i] = static_cast<uint8_t>(i * 7 % 251);
  const ProbeParams p = {out, in, 0, 0};
  run_kernel(
      {"nf12_probe_barrier", 1, 1, 2, 0, {{out, kBytes, true, "out"}, {in, kBytes, false, "in"}}},
      p, {});
  for (uint8_t* part = in; part < in + kBytes; part += 512)
    std::rotate(part, part + 16, part + 512);
  EXPECT(std::equal(in, in + kBytes, out), "other bytes came");
}

}  // namespace
}  // namespace nf12::test
