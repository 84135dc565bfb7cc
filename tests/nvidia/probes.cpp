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

// 512 bytes that one wave copies and another one passes on, a barrier that counts arrivals between
// them.
NF12_KERNEL(64) nf12_probe_barrier(ProbeParams p) {
  NF12_SHARED(uint32_t, shared, 130);
  const int lane = arch::lane(), wave = arch::wave();
  if (wave == 0 && lane == 0) arch::open_barrier(shared, 128, arch::kWave);
  arch::sync_block();
  if (wave == 0) {
    arch::copy_shared16_if(true, shared, 4 * lane, p.in + 16 * lane);
    arch::arrive_barrier_with_copies(shared, 128);
  } else {
    arch::wait_barrier(shared, 128, 0);
    for (int i = lane; i < 128; i += arch::kWave)
      arch::store_words<1>(p.out + 4 * i, {{shared.load((i + 4) % 128)}});
  }
}

NF12_KERNEL(32) nf12_probe_trap(ProbeParams) { asm volatile("trap;"); }

}  // namespace nf12
