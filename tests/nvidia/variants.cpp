// The variants that benchmarks/ab_fused.py sets against the shipped kernels: any m at run time, and
// one token without the 32 KiB of plane. Compiled for every GPU family, never shipped.
#include "csrc/gemm/fused/instances/configs.hpp"
#include "tests/nvidia/runtime_m.hpp"

namespace nf12 {

inline constexpr GemmConfig kAnyTokens = {
    .tokens = 16, .waves = 8, .pairs_ahead = 1, .decode_columns = 32, .plane_bytes = 0};

NF12_KERNEL(kAnyTokens.waves* arch::kWave) nf12_test_fused_any_m(GemmParams p) {
  fused_gemm_any_tokens<kAnyTokens>(p);
}

constexpr GemmConfig without_plane(GemmConfig config) {
  config.plane_bytes = 0;
  return config;
}

NF12_KERNEL(fused_config(1).waves* arch::kWave) nf12_test_fused_m1_no_plane(GemmParams p) {
  fused_gemm<without_plane(fused_config(1))>(p);
}

}  // namespace nf12
