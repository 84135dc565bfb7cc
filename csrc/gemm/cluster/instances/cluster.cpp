// Every instance of the cluster kernel: nf12_gemm_cluster_t24 to _t64, for NVIDIA.
// Compiled once per GPU target (see targets.json), never by the host compiler of the library.
#include "csrc/gemm/cluster/instances/configs.hpp"
#include "csrc/gemm/cluster/kernel.hpp"

namespace nf12 {

#define NF12_CLUSTER(tokens)                                    \
  NF12_KERNEL((cluster_config(tokens).waves + 1) * arch::kWave) \
  nf12_gemm_cluster_t##tokens(ClusterParams p) { cluster_gemm<cluster_config(tokens)>(p); }
NF12_CLUSTER(24)
NF12_CLUSTER(32)
NF12_CLUSTER(48)
NF12_CLUSTER(64)

}  // namespace nf12
