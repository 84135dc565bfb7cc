#include "csrc/cpu/level.hpp"

#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace nf12::cpu {
namespace {

constexpr const char* kNames[kLevels] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};

#if defined(__x86_64__)

struct CpuidLeaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  CpuidLeaf(unsigned leaf, unsigned subleaf) {
    __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx);  // leaves zeros where there is none
  }
};

constexpr bool has(unsigned bits, std::initializer_list<int> wanted) {
  for (int bit : wanted)
    if (!(bits >> bit & 1)) return false;
  return true;
}

// Register state that the operating system saves: 1 SSE, 2 AVX, 5..7 AVX-512, 17..18 AMX.
unsigned enabled_state() {
  if (!has(CpuidLeaf(1, 0).ecx, {27})) return 0;  // OSXSAVE: else xgetbv itself is illegal
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Linux keeps the 8 KiB of tile data switched off until a process asks for it; the grant holds for
// all its threads.
bool request_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Level detect() {
  const unsigned state = enabled_state();
  const CpuidLeaf basic(1, 0), extended(7, 0), more(7, 1);
  const bool avx2 = has(state, {1, 2}) && has(basic.ecx, {12}) && has(extended.ebx, {5});  // FMA
  if (!avx2) return Level::kPortable;
  const bool avx512 = has(state, {5, 6, 7}) && has(extended.ebx, {16, 17, 30, 31}) &&  // F DQ BW VL
                      has(extended.ecx, {1});                                          // VBMI
  if (!avx512) return Level::kAvx2;
  if (!has(more.eax, {5})) return Level::kAvx512;
  const bool amx = has(state, {17, 18}) && has(extended.edx, {22, 24}) && request_amx();
  return amx ? Level::kAmx : Level::kAvx512Bf16;
}

#else

Level detect() { return Level::kPortable; }

#endif

Level detected() {
  static const Level level = detect();
  return level;
}

// The level that an environment variable names, if it names one.
std::optional<Level> level_from_environment(const char* variable) {
  const char* name = std::getenv(variable);
  if (name == nullptr || *name == '\0') return std::nullopt;
  const std::string text = std::string("nf12: ") + variable + " is " + name;
  Level level;
  if (!parse_level(name, &level)) {
    throw std::runtime_error(text + ", not one of portable, avx2, avx512, avx512_bf16, amx");
  }
  if (!level_supported(level)) {
    throw std::runtime_error(text + ", this machine supports up to " + level_name(detected()));
  }
  return level;
}

}  // namespace

const char* level_name(Level level) { return kNames[static_cast<int>(level)]; }

bool parse_level(const char* name, Level* level) {
  for (int i = 0; i < kLevels; ++i) {
    if (std::strcmp(name, kNames[i]) == 0) {
      *level = static_cast<Level>(i);
      return true;
    }
  }
  return false;
}

bool level_supported(Level level) { return level <= detected(); }

Level highest_level() {
  // A throw leaves it to the next call.
  static const Level level = level_from_environment("NF12_CPU_LEVEL").value_or(detected());
  return level;
}

}  // namespace nf12::cpu
