// The kernels that code objects may hold, by the names of their entry points in the instances/
// folders. A target may lack some of them.
#pragma once
#include <array>

namespace nf12::runtime {

// clang-format off
#define NF12_FOR_EACH_KERNEL(K)                                                                \
  K(gemm_fused_m1)  K(gemm_fused_m2)  K(gemm_fused_m3)  K(gemm_fused_m4)                       \
  K(gemm_fused_m5)  K(gemm_fused_m6)  K(gemm_fused_m7)  K(gemm_fused_m8)                       \
  K(gemm_fused_m9)  K(gemm_fused_m10) K(gemm_fused_m11) K(gemm_fused_m12)                      \
  K(gemm_fused_m13) K(gemm_fused_m14) K(gemm_fused_m15) K(gemm_fused_m16)                      \
  K(gemm_stream_t8) K(gemm_stream_t16) K(gemm_stream_t32)                                      \
  K(gemm_cluster_t24) K(gemm_cluster_t32) K(gemm_cluster_t48) K(gemm_cluster_t64)              \
  K(gemm_warpgroup_t32) K(gemm_warpgroup_t48) K(gemm_warpgroup_t64)                            \
  K(gemm_warpgroup_t80) K(gemm_warpgroup_t96) K(gemm_warpgroup_t128)                           \
  K(gemm_warpgroup_t192) K(gemm_warpgroup_t256)                                                \
  K(gemm_wide_t128) K(gemm_wide_t192) K(gemm_wide_t256) K(gemm_once_t256)                      \
  K(gemm_matrix_t16) K(gemm_matrix_t32) K(gemm_matrix_t64) K(gemm_matrix_t128)                 \
  K(gemm_combine)                                                                              \
  K(unpack_a16) K(unpack_a4) K(unpack_a2)                                                      \
  K(unpack_tile_a16) K(unpack_tile_a4) K(unpack_tile_a2)                                       \
  K(gather_a16) K(gather_a4) K(gather_a2)                                                      \
  K(pack_survey_a16) K(pack_survey_a2) K(pack_count_a16) K(pack_count_a2)                      \
  K(pack_encode_a16) K(pack_encode_a2) K(pack_compare) K(pack_raw)                             \
  K(check)
// clang-format on

enum class Kernel : int {
#define NF12_ENUMERATOR(name) name,
  NF12_FOR_EACH_KERNEL(NF12_ENUMERATOR)
#undef NF12_ENUMERATOR
};

inline constexpr const char* kKernelNames[] = {
#define NF12_NAME(name) "nf12_" #name,
    NF12_FOR_EACH_KERNEL(NF12_NAME)
#undef NF12_NAME
};
inline constexpr int kKernels = sizeof(kKernelNames) / sizeof(kKernelNames[0]);

constexpr const char* name_of(Kernel kernel) { return kKernelNames[static_cast<int>(kernel)]; }

// The number that a kernel's name ends with: of tokens, or of an alignment in bytes; 0 if none.
inline constexpr auto kKernelNumbers = [] {
  std::array<int, kKernels> numbers = {};
  for (int i = 0; i < kKernels; ++i)
    for (const char* c = kKernelNames[i]; *c != 0; ++c)
      numbers[i] = *c >= '0' && *c <= '9' ? 10 * numbers[i] + (*c - '0') : 0;
  return numbers;
}();

// Of the kernels from `first` on, which follow one another, that of a number; it must be there.
constexpr Kernel kernel_of(Kernel first, int number) {
  int i = static_cast<int>(first);
  while (i + 1 < kKernels && kKernelNumbers[i] != number) ++i;
  return static_cast<Kernel>(i);
}

// tokens: 1 to 16.
constexpr Kernel fused_kernel(int tokens) { return kernel_of(Kernel::gemm_fused_m1, tokens); }
// tokens: those that each is compiled for (csrc/gemm/*/instances/configs.hpp).
constexpr Kernel stream_kernel(int tokens) { return kernel_of(Kernel::gemm_stream_t8, tokens); }
constexpr Kernel cluster_kernel(int tokens) { return kernel_of(Kernel::gemm_cluster_t24, tokens); }
constexpr Kernel warpgroup_kernel(int tokens) {
  return kernel_of(Kernel::gemm_warpgroup_t32, tokens);
}
constexpr Kernel wide_kernel(int tokens) { return kernel_of(Kernel::gemm_wide_t128, tokens); }
constexpr Kernel matrix_kernel(int tokens) { return kernel_of(Kernel::gemm_matrix_t16, tokens); }
// alignment of the rows in bytes: 16, 4 or 2.
constexpr Kernel unpack_kernel(int alignment) { return kernel_of(Kernel::unpack_a16, alignment); }
constexpr Kernel unpack_tile_kernel(int alignment) {
  return kernel_of(Kernel::unpack_tile_a16, alignment);
}
constexpr Kernel gather_kernel(int alignment) { return kernel_of(Kernel::gather_a16, alignment); }
static_assert(fused_kernel(16) == Kernel::gemm_fused_m16);
static_assert(warpgroup_kernel(256) == Kernel::gemm_warpgroup_t256);
static_assert(unpack_tile_kernel(2) == Kernel::unpack_tile_a2);

// From the launch.
constexpr bool takes_shared_memory(Kernel kernel) {
  return kernel >= Kernel::gemm_stream_t8 && kernel <= Kernel::gemm_once_t256;
}

// With griddepcontrol.launch_dependents.
constexpr bool starts_successor(Kernel kernel) {
  return takes_shared_memory(kernel) && kernel != Kernel::gemm_once_t256;
}

}  // namespace nf12::runtime
