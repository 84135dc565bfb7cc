#include "csrc/cpu/gemm/blocked.hpp"
#include "csrc/cpu/gemm/fused.hpp"
#include "csrc/cpu/gemm/kernel.hpp"
#include "csrc/cpu/gemm/vector_avx2.hpp"

namespace nf12::cpu {
namespace {

size_t workspace_bytes(int64_t m, int64_t, int64_t k) { return activation_bytes<Avx2>(m, k); }

void run(const GemmArgs& args, const Parallel& parallel) {
  switch (args.m) {
    case 1:
      return Fused<Avx2, 1>::run(args, parallel);
    case 2:
      return Fused<Avx2, 2>::run(args, parallel);
    case 3:
      return Fused<Avx2, 3>::run(args, parallel);
    default:
      return Blocked<Avx2>::run(args, parallel);
  }
}

}  // namespace

const GemmKernel kGemmAvx2 = {workspace_bytes, run};

}  // namespace nf12::cpu
