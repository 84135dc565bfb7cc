// Which kernel runs: the levels' table and the measured choice among them.
#include "csrc/cpu/gemm/kernel.hpp"

namespace nf12::cpu {
namespace {

const GemmKernel& kernel_of(Level level) {
  switch (level) {
#if defined(__x86_64__)
    case Level::kAvx2:
      return kGemmAvx2;
    case Level::kAvx512:
      return kGemmAvx512;
    case Level::kAvx512Bf16:
      return kGemmAvx512Bf16;
    case Level::kAmx:
      return kGemmAmx;
#endif
    default:
      return kGemmPortable;
  }
}

}  // namespace

// AMX works on 16 tokens at a time: for a few of them AVX-512 decodes straight into its products.
// Xeon with AMX, 16 cores, 2026-11-29, microseconds of AVX-512 / AVX-512-BF16 / AMX, cold:
//   m = 2  4096x4096 223 / 236 / 277, 4096x14336  734 /  810 / 856, 896x4864 51 / 66 / 79
//   m = 4            317 / 347 / 285              985 / 1156 / 934           91 / 71 / 66
Level select_level(int64_t m, int64_t, int64_t, Level highest) {
  constexpr int64_t kFewTokens = 3;
  return highest == Level::kAmx && m <= kFewTokens ? Level::kAvx512 : highest;
}

size_t gemm_workspace_bytes(int64_t m, int64_t n, int64_t k, Level level) {
  return m == 0 ? 0 : kernel_of(level).workspace_bytes(m, n, k);
}

void gemm(const GemmArgs& args, Level level, const Parallel& parallel) {
  if (args.m > 0) kernel_of(level).run(args, parallel);
}

}  // namespace nf12::cpu
