// Instruction-set levels of the CPU kernels and the choice between them.
#pragma once
#include <cstdint>

namespace nf12::cpu {

// Each level includes the ones before it. AVX2 means AVX2 + FMA, AVX-512 means F + BW + VL + DQ +
// VBMI where a kernel says so.
enum class Level : int { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };
inline constexpr int kLevels = 5;

// Whether the levels above portable, the *_avx*.cpp and *_amx.cpp files, are part of this build.
#if defined(__x86_64__)
inline constexpr bool kX86 = true;
#else
inline constexpr bool kX86 = false;
#endif

const char* level_name(Level level);  // "portable", "avx2", "avx512", "avx512_bf16", "amx"
bool parse_level(const char* name, Level* level);  // false for an unknown name

// What this processor and its operating system run (AMX asks the kernel for permission once).
bool level_supported(Level level);
// The best supported level, capped by NF12_CPU_LEVEL; read once, thread-safe. An unknown or
// unsupported name in the variable is an error that the first operator call reports.
Level highest_level();

// The kernel for a shape: the measured choice among the levels up to `highest`. Pure.
Level select_level(int64_t m, int64_t n, int64_t k, Level highest);

}  // namespace nf12::cpu
