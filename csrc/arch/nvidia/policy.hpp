// NVIDIA, sm_80 and later. A warp is the wave; uniform values live in every lane's registers.
#pragma once
#include "csrc/arch/words.hpp"

#define NF12_DEVICE __device__ __forceinline__
#define NF12_INLINE __host__ __device__ __forceinline__
#define NF12_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define NF12_KERNEL_OF(threads, registers) NF12_KERNEL(threads)
#define NF12_KERNEL_BLOCKS(threads, blocks) \
  extern "C" __global__ void __launch_bounds__(threads, blocks)
#define NF12_UNROLL _Pragma("unroll")
#define NF12_NO_UNROLL _Pragma("unroll 1")
#define NF12_UNROLL_BY(count) NF12_PRAGMA(unroll count)
#define NF12_PRAGMA(text) _Pragma(#text)
#define NF12_SHARED(type, name, count)                \
  __shared__ __align__(16) type name##_memory[count]; \
  const nf12::arch::Shared<type> name { name##_memory }

// More than 48 KiB are given by the launch; one array a kernel.
#define NF12_SHARED_AT_LAUNCH(type, name, count)        \
  extern __shared__ __align__(16) type name##_memory[]; \
  const nf12::arch::Shared<type> name { name##_memory }

#include "csrc/arch/fragments.hpp"

namespace nf12::arch {

NF12_DEVICE int lane() { return threadIdx.x % kWave; }
// From lane 0: ptxas then knows it to be uniform, and keeps what follows from it in scalar
// registers.
NF12_DEVICE int wave() { return __shfl_sync(0xFFFFFFFFu, threadIdx.x / kWave, 0); }
NF12_DEVICE int block_x() { return blockIdx.x; }
NF12_DEVICE int block_y() { return blockIdx.y; }
NF12_DEVICE void sync_block() { __syncthreads(); }

NF12_DEVICE Words<4> load_stream16(const uint8_t* base, uint32_t offset) {
  Words<4> out;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.w[0]), "=r"(out.w[1]), "=r"(out.w[2]), "=r"(out.w[3])
               : "l"(base + offset));
  return out;
}
template <typename T>
NF12_DEVICE T load(const void* base, uint32_t offset) {
  return *reinterpret_cast<const T*>(static_cast<const char*>(base) + offset);
}
NF12_DEVICE Words<4> load16(const uint32_t* base, uint32_t offset) {
  const uint4 v = load<uint4>(base, offset);
  return {{v.x, v.y, v.z, v.w}};
}
NF12_DEVICE uint16_t load2(const uint16_t* base, uint32_t offset) {
  return load<uint16_t>(base, offset);
}
NF12_DEVICE float load4(const float* base, uint32_t offset) { return load<float>(base, offset); }
NF12_DEVICE void store2(uint16_t* p, uint16_t value) { *p = value; }
NF12_DEVICE void store4(float* p, float value) { *p = value; }

// Accesses must be aligned to their width: as many as that takes.
template <int count, int alignment = 4 * count>
NF12_DEVICE Words<count> load_words(const void* p) {
  Words<count> out;
  if constexpr (alignment >= 16 && count == 4) {
    out = load16(static_cast<const uint32_t*>(p), 0);
  } else if constexpr (alignment >= 8 && count == 2) {
    const uint2 v = load<uint2>(p, 0);
    out = {{v.x, v.y}};
  } else if constexpr (alignment >= 4) {
    NF12_UNROLL
    for (int i = 0; i < count; ++i) out.w[i] = load<uint32_t>(p, 4 * i);
  } else {
    NF12_UNROLL
    for (int i = 0; i < count; ++i)
      out.w[i] = load<uint16_t>(p, 4 * i) | uint32_t{load<uint16_t>(p, 4 * i + 2)} << 16;
  }
  return out;
}
template <int count, int alignment = 4 * count>
NF12_DEVICE void store_words(void* p, const Words<count>& words) {
  if constexpr (alignment >= 16 && count == 4) {
    *static_cast<uint4*>(p) = {words.w[0], words.w[1], words.w[2], words.w[3]};
  } else if constexpr (alignment >= 8 && count == 2) {
    *static_cast<uint2*>(p) = {words.w[0], words.w[1]};
  } else if constexpr (alignment >= 4) {
    NF12_UNROLL
    for (int i = 0; i < count; ++i) static_cast<uint32_t*>(p)[i] = words.w[i];
  } else {
    NF12_UNROLL
    for (int i = 0; i < count; ++i) {
      static_cast<uint16_t*>(p)[2 * i] = static_cast<uint16_t>(words.w[i]);
      static_cast<uint16_t*>(p)[2 * i + 1] = static_cast<uint16_t>(words.w[i] >> 16);
    }
  }
}

NF12_DEVICE void atomic_add8(uint64_t* p, uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(p), value);
}
NF12_DEVICE void atomic_or4(uint32_t* p, uint32_t value) { atomicOr(p, value); }
NF12_DEVICE void atomic_min4(uint32_t* p, uint32_t value) { atomicMin(p, value); }

template <int count>
NF12_DEVICE Words<count> uniform_load(const void* base, uint32_t offset) {
  Words<count> out;
  NF12_UNROLL
  for (int i = 0; i < count; ++i) out.w[i] = load<uint32_t>(base, offset + 4 * i);
  return out;
}

NF12_DEVICE uint32_t broadcast(uint32_t value, int from) {
  return __shfl_sync(0xFFFFFFFFu, value, from);
}

NF12_DEVICE uint32_t ballot(bool condition) { return __ballot_sync(0xFFFFFFFFu, condition); }

template <int mask>
NF12_DEVICE uint32_t swap_in_quad(uint32_t value) {
  static_assert(mask >= 1 && mask <= 3);
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}

// a.lo * b.lo + a.hi * b.hi + c, BF16 pairs, FP32 sum: two multiply-adds, the low half first.
NF12_DEVICE float dot2(uint32_t a, uint32_t b, float c) {
  const float low = __fmaf_rn(__uint_as_float(a << 16), __uint_as_float(b << 16), c);
  return __fmaf_rn(__uint_as_float(a & 0xFFFF0000u), __uint_as_float(b & 0xFFFF0000u), low);
}

template <int b0, int b1, int b2, int b3>
NF12_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high) {
  return __byte_perm(low, high, b0 | b1 << 4 | b2 << 8 | b3 << 12);
}
// As one instruction each: from (a & mask) | (b & ~mask) with a constant mask the compiler makes
// two.
NF12_DEVICE uint32_t and_or(uint32_t a, uint32_t mask, uint32_t b) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(out) : "r"(a), "r"(mask), "r"(b));
  return out;
}
NF12_DEVICE uint32_t merge_bits(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(out) : "r"(mask), "r"(a), "r"(b));
  return out;
}
NF12_DEVICE void replace_bits(uint32_t& w, uint32_t mask, uint32_t value) {
  w = merge_bits(mask, value, w);
}
NF12_DEVICE void replace16(uint32_t* w, int slot, uint32_t mask, uint32_t value) {
  NF12_UNROLL
  for (int i = 0; i < 16; ++i)
    if (i == slot) replace_bits(w[i], mask, value);
}

// ptxas keeps scalars and schedules loads on its own terms: nothing to hold here.
template <typename T>
NF12_DEVICE T in_register(T value) {
  return value;
}
template <int count>
NF12_DEVICE void arrive(Words<count>&) {}
template <typename T>
NF12_DEVICE void settle(T&) {}
NF12_DEVICE void hold_order() {}
template <typename Params>
NF12_DEVICE const Params& reread_arguments(const Params& p) {
  return p;
}

template <typename T>
struct Shared {
  T* memory;
  NF12_DEVICE T load(int i) const { return memory[i]; }
  NF12_DEVICE void store(int i, T value) const { memory[i] = value; }
  NF12_DEVICE void add(int i, T value) const { atomicAdd(&memory[i], value); }
};

NF12_DEVICE Words<2> load_stream8(const uint8_t* base, uint32_t offset) {
  Words<2> out;
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(out.w[0]), "=r"(out.w[1])
               : "l"(base + offset));
  return out;
}

// As load_stream16, at a lane's own address.
template <int count>
NF12_DEVICE Words<count> load_stream(const void* p) {
  Words<count> out;
  if constexpr (count == 4)
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.w[0]), "=r"(out.w[1]), "=r"(out.w[2]), "=r"(out.w[3])
                 : "l"(p));
  else if constexpr (count == 2)
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(out.w[0]), "=r"(out.w[1])
                 : "l"(p));
  else
    asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(out.w[0]) : "l"(p));
  return out;
}

// As store_words, with the hint that the L2 may give these lines up first; only whole 16 bytes.
template <int alignment>
NF12_DEVICE void store_stream(void* p, const Words<4>& words) {
  if constexpr (alignment >= 16)
    __stcs(static_cast<uint4*>(p), {words.w[0], words.w[1], words.w[2], words.w[3]});
  else
    store_words<4, alignment>(p, words);
}

// 16 bytes at any multiple of two.
NF12_DEVICE Words<4> load16_anywhere(const uint16_t* base, uint32_t offset) {
  const char* p = reinterpret_cast<const char*>(base) + offset;
  if (reinterpret_cast<uintptr_t>(p) % 16 == 0)
    return load16(reinterpret_cast<const uint32_t*>(p), 0);
  Words<4> out;
  NF12_UNROLL
  for (int i = 0; i < 4; ++i)
    out.w[i] = load<uint16_t>(p, 4 * i) | uint32_t{load<uint16_t>(p, 4 * i + 2)} << 16;
  return out;
}

// __syncthreads has no halves: both happen at the wait.
NF12_DEVICE void signal_block() {}
NF12_DEVICE void wait_block() { __syncthreads(); }

template <int count>
NF12_DEVICE Words<count> load_shared(const Shared<uint32_t>& shared, int i) {
  struct alignas(4 * count) Aligned : Words<count> {};
  return *reinterpret_cast<const Aligned*>(shared.memory + i);
}
NF12_DEVICE void store_shared16(const Shared<uint32_t>& shared, int i, Words<4> value) {
  *reinterpret_cast<uint4*>(shared.memory + i) =
      make_uint4(value.w[0], value.w[1], value.w[2], value.w[3]);
}

using Fragments = MmaFragments;

struct MatrixSums {
  float values[kFragmentSums] = {};
  NF12_DEVICE float get(int i) const { return values[i]; }
};

// One step of one tile and 16 tokens, as two instructions of 8 tokens.
NF12_DEVICE void multiply_fragment(const uint32_t* w, int step, const Words<4>& x,
                                   MatrixSums& sums) {
  NF12_UNROLL
  for (int half = 0; half < 2; ++half) {
    float* d = sums.values + 4 * half;
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(w[4 * step]), "r"(w[4 * step + 1]), "r"(w[4 * step + 2]), "r"(w[4 * step + 3]),
          "r"(x.w[2 * half]), "r"(x.w[2 * half + 1]));
  }
}

// One step of one tile and 8 tokens: half `half` of `x` holds its columns.
struct HalfSums {
  float values[4] = {};
};
NF12_DEVICE void multiply_half_fragment(const uint32_t* w, int step, const Words<4>& x, int half,
                                        HalfSums& sums) {
  float* d = sums.values;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(w[4 * step]), "r"(w[4 * step + 1]), "r"(w[4 * step + 2]), "r"(w[4 * step + 3]),
        "r"(x.w[2 * half]), "r"(x.w[2 * half + 1]));
}

NF12_DEVICE void sync_wave() { __syncwarp(); }
NF12_DEVICE uint32_t multiply_high(uint32_t a, uint32_t b) { return __umulhi(a, b); }
NF12_DEVICE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// A sum for another block, which polls for it: both halves of 16 bytes arrive together. What it
// has taken it clears, for the next launch that is given the same memory with the same flag (a
// graph that is replayed).
NF12_DEVICE void post_sum(void* at, float sum, uint64_t flag) {
  asm volatile(
      "{\n.reg .b128 both;\n.reg .b64 low;\nmov.b64 low, {%1, 0};\nmov.b128 both, {low, %2};\n"
      "st.relaxed.gpu.global.b128 [%0], both;\n}" ::"l"(at),
      "r"(__float_as_uint(sum)), "l"(flag)
      : "memory");
}
NF12_DEVICE float take_sum(void* at, uint64_t flag) {
  uint64_t low, seen;
  do {
    asm volatile(
        "{\n.reg .b128 both;\nld.relaxed.gpu.global.b128 both, [%2];\nmov.b128 {%0, %1}, both;\n}"
        : "=l"(low), "=l"(seen)
        : "l"(at)
        : "memory");
  } while (seen != flag);
  post_sum(at, 0, 0);
  return __uint_as_float(static_cast<uint32_t>(low));
}

// Not ld.global.nc: that is not ordered by await_predecessor.
NF12_DEVICE void load16_if(bool wanted, const void* p, Words<4>& words) {
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.u32 wanted, %5, 0;\n"
      "@wanted ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(words.w[0]), "+r"(words.w[1]), "+r"(words.w[2]), "+r"(words.w[3])
      : "l"(p), "r"(static_cast<uint32_t>(wanted))
      : "memory");
}
NF12_DEVICE void store_shared2(const Shared<uint32_t>& shared, int half, uint16_t value) {
  reinterpret_cast<uint16_t*>(shared.memory)[half] = value;
}
NF12_DEVICE void copy_shared16_if(bool wanted, const Shared<uint32_t>& shared, int i,
                                  const void* p) {
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.u32 wanted, %2, 0;\n"
      "@wanted cp.async.cg.shared.global [%0], [%1], 16;\n}" ::"r"(
          static_cast<uint32_t>(__cvta_generic_to_shared(shared.memory + i))),
      "l"(p), "r"(static_cast<uint32_t>(wanted))
      : "memory");
}
NF12_DEVICE void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Copies belong to groups, in order; a group may be empty.
NF12_DEVICE void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int groups>
NF12_DEVICE void await_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// A barrier in two words of shared memory that counts arrivals, phase after phase: a wave may be
// phases behind another. `phase` of a wait is the number of the phase that must be over.
NF12_DEVICE uint32_t shared_address(const Shared<uint32_t>& shared, int i) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared.memory + i));
}
NF12_DEVICE void open_barrier(const Shared<uint32_t>& shared, int i, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(shared, i)), "r"(arrivals)
               : "memory");
}
NF12_DEVICE void arrive_barrier(const Shared<uint32_t>& shared, int i) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(
                   shared_address(shared, i))
               : "memory");
}
// Once this lane's copies so far have landed.
NF12_DEVICE void arrive_barrier_with_copies(const Shared<uint32_t>& shared, int i) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(shared, i))
               : "memory");
}
NF12_DEVICE void wait_barrier(const Shared<uint32_t>& shared, int i, int phase) {
  asm volatile(
      "{\n.reg .pred over;\nwait:\n"
#if __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared.b64 over, [%0], %1;\n"
#else
      "mbarrier.test_wait.parity.shared.b64 over, [%0], %1;\n"
#endif
      "@!over bra wait;\n}" ::"r"(shared_address(shared, i)),
      "r"(phase & 1)
      : "memory");
}

// Blocks of a cluster reach each other's shared memory, sm_90 and later. Without the attribute of
// the launch, and before sm_90, a block is a cluster of its own.
NF12_DEVICE int cluster_rank() {
#if __CUDA_ARCH__ >= 900
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
#else
  return 0;
#endif
}
// After the wait all blocks run, and their barriers are open.
NF12_DEVICE void arrive_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.relaxed.aligned;" ::
                   : "memory");
#endif
}
NF12_DEVICE void wait_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// To word i of block `rank`, whose barrier counts the bytes that have come.
NF12_DEVICE void send_shared8(int rank, const Shared<uint32_t>& shared, int i, int barrier,
                              Words<2> value) {
#if __CUDA_ARCH__ >= 900
  uint32_t to, counter;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(to)
      : "r"(shared_address(shared, i)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(counter)
      : "r"(shared_address(shared, barrier)), "r"(rank));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];" ::"r"(
          to),
      "r"(value.w[0]), "r"(value.w[1]), "r"(counter)
      : "memory");
#endif
}
// One arrival, and a phase that is not over before so many bytes have come too.
NF12_DEVICE void expect_bytes(const Shared<uint32_t>& shared, int barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(
          shared_address(shared, barrier)),
      "r"(bytes)
      : "memory");
#endif
}
NF12_DEVICE void store_shared8(const Shared<uint32_t>& shared, int i, Words<2> value) {
  *reinterpret_cast<uint2*>(shared.memory + i) = make_uint2(value.w[0], value.w[1]);
}

// Dependent launch, sm_90 and later; without the attribute of the launch both do nothing.
NF12_DEVICE void start_successor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
NF12_DEVICE void await_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace nf12::arch
