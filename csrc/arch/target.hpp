// The only file that asks which compiler it is under. Host builds see the host policy; GPU policies
// join here with their kernels.
#pragma once
#include <bit>

#if defined(__CUDACC__) || defined(__HIP__)
#define NF12_INLINE __host__ __device__ __attribute__((always_inline)) inline
#else
// always_inline: a header function compiled once with AVX-512 flags must never be the copy that the
// linker keeps for a portable caller.
#define NF12_INLINE __attribute__((always_inline)) inline
#endif

namespace nf12 {

static_assert(std::endian::native == std::endian::little, "code words are read as they lie");

// Whether the *_avx*.cpp and *_amx.cpp files are part of this build.
#if defined(__x86_64__)
inline constexpr bool kX86 = true;
#else
inline constexpr bool kX86 = false;
#endif

}  // namespace nf12
