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

NF12_KERNEL(32) nf12_probe_trap(ProbeParams) { asm volatile("trap;"); }

}  // namespace nf12
