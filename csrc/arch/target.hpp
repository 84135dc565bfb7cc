// The only file that asks which compiler it is under. Host builds see the host policy; GPU policies
// join here with their kernels.
#pragma once

#if defined(__CUDACC__) || defined(__HIP__)
#define NF12_INLINE __host__ __device__ __attribute__((always_inline)) inline
#else
// always_inline: a header function compiled once with AVX-512 flags must never be the copy that the
// linker keeps for a portable caller.
#define NF12_INLINE __attribute__((always_inline)) inline
#endif
