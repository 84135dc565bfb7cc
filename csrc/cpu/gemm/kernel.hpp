// One level's multiplication, as the dispatcher sees it. A level's file defines its kernel and
// nothing else with external linkage: everything it instantiates hangs on types of its own, so that
// code compiled for one instruction set never stands in for another's.
#pragma once
#include "csrc/cpu/cpu.hpp"

namespace nf12::cpu {

struct GemmKernel {
  size_t (*workspace_bytes)(int64_t m, int64_t n, int64_t k);
  void (*run)(const GemmArgs& args, const Parallel& parallel);  // m >= 1
};

extern const GemmKernel kGemmPortable;
#if defined(__x86_64__)
extern const GemmKernel kGemmAvx2;
extern const GemmKernel kGemmAvx512;
extern const GemmKernel kGemmAvx512Bf16;
extern const GemmKernel kGemmAmx;
#endif

}  // namespace nf12::cpu
