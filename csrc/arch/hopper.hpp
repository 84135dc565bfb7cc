// The words that only sm_90a has, by target: beside target.hpp, for the kernels that are compiled
// for that GPU alone, and for the host model, which has them too.
#pragma once
#include "csrc/arch/target.hpp"

#if defined(__CUDACC__) || defined(__HIP__)
#include "csrc/arch/nvidia/hopper.hpp"
#else
#include "csrc/arch/host/hopper.hpp"
#endif
