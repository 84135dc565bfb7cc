// What benchmarks/ab_fused.py sets against each other: the token count at run time and at compile
// time, and one token without the 32 KiB of plane. Compiled for every GPU family, never shipped.
#include "csrc/gemm/fused/instances/configs.hpp"
#include "tests/nvidia/runtime_m.hpp"

namespace nf12 {

constexpr GemmConfig simple_config(int tokens) {
  return {.tokens = tokens, .waves = 8, .pairs_ahead = 1, .decode_columns = 32, .plane_bytes = 0};
}

NF12_KERNEL(simple_config(16).waves* arch::kWave) nf12_test_run_time_m(GemmParams p) {
  fused_gemm_tokens<simple_config(16), TokenCount::kRunTime>(p);
}

#define NF12_COMPILE_TIME(m)                                          \
  NF12_KERNEL(simple_config(m).waves* arch::kWave)                    \
  nf12_test_compile_time_m##m(GemmParams p) {                         \
    fused_gemm_tokens<simple_config(m), TokenCount::kCompileTime>(p); \
  }
NF12_COMPILE_TIME(1)
NF12_COMPILE_TIME(2)
NF12_COMPILE_TIME(4)
NF12_COMPILE_TIME(8)
NF12_COMPILE_TIME(15)

constexpr GemmConfig without_plane(GemmConfig config) {
  config.plane_bytes = 0;
  return config;
}

NF12_KERNEL(fused_config(1).waves* arch::kWave) nf12_test_fused_m1_no_plane(GemmParams p) {
  fused_gemm<without_plane(fused_config(1))>(p);
}

}  // namespace nf12
