// RDNA4 (gfx1200, gfx1201), wave32. Builtins only: the code objects build without ROCm's headers.
#pragma once
#include "csrc/arch/words.hpp"

#define NF12_DEVICE __attribute__((device, always_inline)) inline
#define NF12_INLINE __attribute__((host, device, always_inline)) inline
// 96 vector registers a lane: sixteen waves of a SIMD's 1,536.
#define NF12_KERNEL(threads)                                                       \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads), \
                            amdgpu_num_vgpr(96))) void
// For kernels whose sums fill more registers: `registers` bounds the waves that share a SIMD.
#define NF12_KERNEL_OF(threads, registers)                                         \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads), \
                            amdgpu_num_vgpr(registers))) void
#define NF12_UNROLL _Pragma("unroll")
#define NF12_NO_UNROLL _Pragma("nounroll")
#define NF12_SHARED(type, name, count)                                   \
  static __attribute__((shared, aligned(16))) type name##_memory[count]; \
  const nf12::arch::Shared<type> name { name##_memory }

#include "csrc/arch/fragments.hpp"

namespace nf12::arch {

template <typename T>
using Global = const __attribute__((address_space(1))) T*;
template <typename T>
using GlobalOut = __attribute__((address_space(1))) T*;
template <typename T>
using Constant = const __attribute__((address_space(4))) T*;
template <int count>
using Vector = uint32_t __attribute__((ext_vector_type(count)));
template <int count>
using VectorOfAnyAlignment = Vector<count> __attribute__((aligned(4)));

NF12_DEVICE int lane() { return __builtin_amdgcn_workitem_id_x() % kWave; }
NF12_DEVICE int wave() {
  return __builtin_amdgcn_readfirstlane(__builtin_amdgcn_workitem_id_x() / kWave);
}
NF12_DEVICE int block_x() { return __builtin_amdgcn_workgroup_id_x(); }
NF12_DEVICE int block_y() { return __builtin_amdgcn_workgroup_id_y(); }

// Orders shared memory only: a fence over all memory would write back and invalidate the caches.
NF12_DEVICE void sync_block() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

// global_load_b128 th:TH_LOAD_NT with a scalar base: no vector operation for the address.
NF12_DEVICE Words<4> load_stream16(const uint8_t* base, uint32_t offset) {
  const auto p = reinterpret_cast<Global<Vector<4>>>(reinterpret_cast<uintptr_t>(base) + offset);
  return __builtin_bit_cast(Words<4>, __builtin_nontemporal_load(p));
}
NF12_DEVICE Words<4> load16(const uint32_t* base, uint32_t offset) {
  const auto p = reinterpret_cast<Global<Vector<4>>>(reinterpret_cast<uintptr_t>(base) + offset);
  return __builtin_bit_cast(Words<4>, *p);
}
NF12_DEVICE uint16_t load2(const uint16_t* base, uint32_t offset) {
  return *reinterpret_cast<Global<uint16_t>>(reinterpret_cast<uintptr_t>(base) + offset);
}
NF12_DEVICE float load4(const float* base, uint32_t offset) {
  return *reinterpret_cast<Global<float>>(reinterpret_cast<uintptr_t>(base) + offset);
}
NF12_DEVICE void store2(uint16_t* p, uint16_t value) {
  *reinterpret_cast<GlobalOut<uint16_t>>(reinterpret_cast<uintptr_t>(p)) = value;
}
NF12_DEVICE void store4(float* p, float value) {
  *reinterpret_cast<GlobalOut<float>>(reinterpret_cast<uintptr_t>(p)) = value;
}

// One instruction whatever the alignment: global memory of this family takes any address.
template <int count, int alignment>
using AlignedVector = Vector<count> __attribute__((aligned(alignment)));
template <int count, int alignment = 4 * count>
NF12_DEVICE Words<count> load_words(const void* p) {
  const auto vector =
      reinterpret_cast<const __attribute__((address_space(1))) AlignedVector<count, alignment>*>(
          reinterpret_cast<uintptr_t>(p));
  return __builtin_bit_cast(Words<count>, *vector);
}
template <int count, int alignment = 4 * count>
NF12_DEVICE void store_words(void* p, const Words<count>& words) {
  *reinterpret_cast<__attribute__((address_space(1))) AlignedVector<count, alignment>*>(
      reinterpret_cast<uintptr_t>(p)) = __builtin_bit_cast(Vector<count>, words);
}

NF12_DEVICE void atomic_add8(uint64_t* p, uint64_t value) {
  __hip_atomic_fetch_add(reinterpret_cast<GlobalOut<uint64_t>>(reinterpret_cast<uintptr_t>(p)),
                         value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
NF12_DEVICE void atomic_or4(uint32_t* p, uint32_t value) {
  __hip_atomic_fetch_or(reinterpret_cast<GlobalOut<uint32_t>>(reinterpret_cast<uintptr_t>(p)),
                        value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
NF12_DEVICE void atomic_min4(uint32_t* p, uint32_t value) {
  __hip_atomic_fetch_min(reinterpret_cast<GlobalOut<uint32_t>>(reinterpret_cast<uintptr_t>(p)),
                         value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// s_load: through the scalar cache into SGPRs. Base and offset in bytes are uniform, the address is
// 4-byte aligned; the offset is added by the load itself.
template <int count>
NF12_DEVICE Words<count> uniform_load(const void* base, uint32_t offset) {
  const auto p = reinterpret_cast<Constant<VectorOfAnyAlignment<count>>>(
      reinterpret_cast<uintptr_t>(base) + offset);
  return __builtin_bit_cast(Words<count>, *p);
}

NF12_DEVICE uint32_t broadcast(uint32_t value, int from) {
  return __builtin_amdgcn_readlane(value, from);
}

NF12_DEVICE uint32_t ballot(bool condition) { return __builtin_amdgcn_ballot_w32(condition); }

// DPP quad_perm: an operand modifier, no trip through LDS. Into a register of its own, which costs
// nothing here and keeps the instruction emulator right: it moves one lane after the other.
template <int mask>
NF12_DEVICE uint32_t swap_in_quad(uint32_t value) {
  static_assert(mask >= 1 && mask <= 3);
  uint32_t out;
  asm("v_mov_b32_dpp %0, %1 quad_perm:[%2,%3,%4,%5] row_mask:0xf bank_mask:0xf"
      : "=&v"(out)
      : "v"(value), "n"(0 ^ mask), "n"(1 ^ mask), "n"(2 ^ mask), "n"(3 ^ mask));
  return out;
}

// a.lo * b.lo + a.hi * b.hi + c, BF16 pairs, FP32 sum.
NF12_DEVICE float dot2(uint32_t a, uint32_t b, float c) {
  using Pair = __bf16 __attribute__((ext_vector_type(2)));
  return __builtin_amdgcn_fdot2_f32_bf16(__builtin_bit_cast(Pair, a), __builtin_bit_cast(Pair, b),
                                         c, false);
}

// Bytes b0 (lowest) .. b3 of the eight bytes low (0..3), high (4..7): v_perm_b32.
template <int b0, int b1, int b2, int b3>
NF12_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high) {
  return __builtin_amdgcn_perm(high, low, b0 | b1 << 8 | b2 << 16 | b3 << 24);
}

NF12_DEVICE uint32_t and_or(uint32_t a, uint32_t mask, uint32_t b) { return (a & mask) | b; }
// Bits of `a` where the mask is set, of `b` elsewhere: the form the compiler turns into v_bfi_b32
// as long as the mask is in_register.
NF12_DEVICE uint32_t merge_bits(uint32_t mask, uint32_t a, uint32_t b) {
  return b ^ (mask & (a ^ b));
}

// w takes the bits of `value` under `mask`, in place: unlike merge_bits it cannot be given another
// register on a path that is rarely taken, where w would then exist twice.
NF12_DEVICE void replace_bits(uint32_t& w, uint32_t mask, uint32_t value) {
  asm volatile("v_bfi_b32 %0, %1, %2, %0" : "+v"(w) : "v"(mask), "v"(value));
}

// w[slot] takes the bits of `value` under `mask`; slot is uniform. Branches hidden from the
// compiler: as a C++ switch each of its paths would get its own copy of all sixteen registers, and
// as an indexed register w would move to scratch memory.
#define NF12_LEAF(i) "v_bfi_b32 %" #i ", %[mask], %[value], %" #i "\n s_branch .Lreplaced_%=\n"
#define NF12_NODE(name, bit, low, high) \
  "s_bitcmp1_b32 %[slot], " #bit "\n s_cbranch_scc1 .L" #name "_%=\n" low ".L" #name "_%=:\n" high
#define NF12_LEAVES2(i, j) NF12_NODE(leaf##j, 0, NF12_LEAF(i), NF12_LEAF(j))
#define NF12_LEAVES4(i, j, k, l) NF12_NODE(pair##k, 1, NF12_LEAVES2(i, j), NF12_LEAVES2(k, l))
NF12_DEVICE void replace16(uint32_t* w, int slot, uint32_t mask, uint32_t value) {
  // gfx12 may hand a reader the old value of a scalar register that a vector instruction has ever
  // read; compilers from LLVM 20 on wait where that can happen, but do not look into here. So only
  // `slot` is scalar, and its wait comes first.
  asm("s_wait_alu depctr_sa_sdst(0)\n" NF12_NODE(
          upper, 3, NF12_NODE(quad4, 2, NF12_LEAVES4(0, 1, 2, 3), NF12_LEAVES4(4, 5, 6, 7)),
          NF12_NODE(quad12, 2, NF12_LEAVES4(8, 9, 10, 11),
                    NF12_LEAVES4(12, 13, 14, 15))) ".Lreplaced_%=:\n"
      : "+v"(w[0]), "+v"(w[1]), "+v"(w[2]), "+v"(w[3]), "+v"(w[4]), "+v"(w[5]), "+v"(w[6]),
        "+v"(w[7]), "+v"(w[8]), "+v"(w[9]), "+v"(w[10]), "+v"(w[11]), "+v"(w[12]), "+v"(w[13]),
        "+v"(w[14]), "+v"(w[15])
      : [mask] "v"(mask), [value] "v"(value), [slot] "s"(slot)
      : "scc");
}
#undef NF12_LEAF
#undef NF12_NODE
#undef NF12_LEAVES2
#undef NF12_LEAVES4

// A scalar register whose value the compiler cannot see through: a mask stays one instead of
// turning v_bfi_b32 into and + and + or, and a running pointer stays one pointer.
template <typename T>
NF12_DEVICE T in_register(T value) {
  asm volatile("" : "+s"(value));
  return value;
}

// Loaded words are waited for here, and what uses them stays below.
template <int count>
NF12_DEVICE void arrive(Words<count>& words) {
  auto vector = __builtin_bit_cast(Vector<count>, words);
  asm volatile("" : "+s"(vector));
  words = __builtin_bit_cast(Words<count>, vector);
}

// What computes the value stays above.
template <typename T>
NF12_DEVICE void settle(T& value) {
  asm volatile("" : "+v"(value));
}

// The kernel's only argument, read again from memory where it is used: what only a rare path needs
// does not occupy registers everywhere else.
template <typename Params>
NF12_DEVICE const Params& reread_arguments(const Params&) {
  auto p = (Constant<Params>)__builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(p));
  return *(const Params*)p;
}

NF12_DEVICE void hold_order() { __builtin_amdgcn_sched_barrier(0); }

template <typename T>
struct Shared {
  T* memory;
  NF12_DEVICE T load(int i) const { return memory[i]; }
  NF12_DEVICE void store(int i, T value) const { memory[i] = value; }
  NF12_DEVICE void add(int i, T value) const {
    __hip_atomic_fetch_add((__attribute__((address_space(3))) T*)&memory[i], value,
                           __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  }
};

NF12_DEVICE Words<2> load_stream8(const uint8_t* base, uint32_t offset) {
  const auto p = reinterpret_cast<Global<Vector<2>>>(reinterpret_cast<uintptr_t>(base) + offset);
  return __builtin_bit_cast(Words<2>, __builtin_nontemporal_load(p));
}

// 16 bytes at any multiple of two: gfx12 loads them in one instruction all the same.
NF12_DEVICE Words<4> load16_anywhere(const uint16_t* base, uint32_t offset) {
  using Unaligned = Vector<4> __attribute__((aligned(2)));
  const auto p = reinterpret_cast<Global<Unaligned>>(reinterpret_cast<uintptr_t>(base) + offset);
  return __builtin_bit_cast(Words<4>, *p);
}

// The two halves of sync_block: what a wave did to shared memory before the signal is complete
// there. As fences the compiler would wait for every load from global memory too, and these are
// meant to stay in flight.
NF12_DEVICE void signal_block() {
  asm volatile("s_wait_dscnt 0x0\n s_barrier_signal -1" ::: "memory");
}
NF12_DEVICE void wait_block() { asm volatile("s_barrier_wait -1" ::: "memory"); }

// `count` neighbouring words, aligned to all of them.
template <int count>
NF12_DEVICE Words<count> load_shared(const Shared<uint32_t>& shared, int i) {
  return __builtin_bit_cast(Words<count>,
                            *reinterpret_cast<const Vector<count>*>(shared.memory + i));
}
NF12_DEVICE void store_shared16(const Shared<uint32_t>& shared, int i, Words<4> value) {
  *reinterpret_cast<Vector<4>*>(shared.memory + i) = __builtin_bit_cast(Vector<4>, value);
}

using Fragments = WmmaFragments;

// The sums of 16 rows x 16 tokens that one lane holds: the registers of one matrix instruction.
using Floats = float __attribute__((ext_vector_type(kFragmentSums)));
struct MatrixSums {
  Floats values = {};
  NF12_DEVICE float get(int i) const { return values[i]; }
};

NF12_DEVICE void settle(MatrixSums& sums) { asm volatile("" : "+v"(sums.values)); }

// One step of one tile and 16 tokens; w: the lane's 16 registers of the tile.
NF12_DEVICE void multiply_fragment(const uint32_t* w, int step, const Words<4>& x,
                                   MatrixSums& sums) {
  using Operand = short __attribute__((ext_vector_type(8)));
  const Words<4> a = {{w[4 * step], w[4 * step + 1], w[4 * step + 2], w[4 * step + 3]}};
  sums.values = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(
      __builtin_bit_cast(Operand, a), __builtin_bit_cast(Operand, x), sums.values);
}

}  // namespace nf12::arch
