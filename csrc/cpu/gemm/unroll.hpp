// GCC keeps an array of vectors in memory, and stores into it, unless every loop over it is
// unrolled before it decides which variables are registers. Loops that index such arrays say so
// with this.
#pragma once

#define NF12_UNROLL_REGISTERS _Pragma("GCC unroll 16")
