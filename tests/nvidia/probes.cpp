// Kernels that do what a machine must report, for machine_test.cpp.
#include "tests/nvidia/probes.hpp"

#include "csrc/arch/target.hpp"

namespace nf12 {

// One byte, anywhere.
NF12_KERNEL(32) nf12_probe_store(ProbeParams p) {
  if (arch::lane() == 0) p.out[p.at] = p.value;
}

// Which block of its cluster each block is.
NF12_KERNEL(32) nf12_probe_cluster(ProbeParams p) {
  if (arch::lane() == 0)
    p.out[p.at + arch::block_x()] = static_cast<uint8_t>(p.value + arch::cluster_rank());
}

// 2 KiB that one wave copies and another one passes on, through room for 512 bytes: barriers that
// count arrivals say when the copy is there, and when it has been read, for which lane 0 arrives.
NF12_KERNEL(64) nf12_probe_barrier(ProbeParams p) {
  constexpr int kFilled = 128, kEmptied = 130;
  NF12_SHARED(uint32_t, shared, 132);
  const int lane = arch::lane(), wave = arch::wave();
  if (wave == 0 && lane == 0) {
    arch::open_barrier(shared, kFilled, arch::kWave);
    arch::open_barrier(shared, kEmptied, 1);
  }
  arch::sync_block();
  for (int t = 0; t < 4; ++t) {
    if (wave == 0) {
      if (t > 0) arch::wait_barrier(shared, kEmptied, t - 1);
      arch::copy_shared16_if(true, shared, 4 * lane, p.in + 512 * t + 16 * lane);
      arch::arrive_barrier_with_copies(shared, kFilled);
    } else {
      arch::wait_barrier(shared, kFilled, t);
      for (int i = lane; i < 128; i += arch::kWave)
        arch::store_words<1>(p.out + 512 * t + 4 * i, {{shared.load((i + 4) % 128)}});
      arch::sync_wave();
      if (lane == 0) arch::arrive_barrier(shared, kEmptied);
    }
  }
}

NF12_KERNEL(32) nf12_probe_trap(ProbeParams) { asm volatile("trap;"); }

}  // namespace nf12
