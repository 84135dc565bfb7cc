// Words that only sm_90a has: copies by the tensor unit, matrix instructions on shared memory,
// registers that warpgroups trade. Beside policy.hpp; the kernels for sm_90a are written in them.
//
// Shared memory is named by its 32-bit address here, in bytes, as these instructions take it.
#pragma once
#include "csrc/arch/target.hpp"

// Code for that GPU alone: in the fatbin's other entries these kernels are absent.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define NF12_HOPPER 1
#else
#define NF12_HOPPER 0
#endif

// A kernel's one argument that stays where the launch put it, so that copies may take tensor maps
// from there.
#define NF12_ARGUMENT(type) const __grid_constant__ type

// All shared memory of the block, given by the launch, from a multiple of 1,024 on: permuted rows
// repeat after as many bytes.
#define NF12_SHARED_ALIGNED(name)                             \
  extern __shared__ __align__(1024) uint32_t name##_memory[]; \
  const nf12::arch::Shared<uint32_t> name { name##_memory }

#if NF12_HOPPER
namespace nf12::arch {

// ---- shared memory by its address ----

NF12_DEVICE uint32_t load_shared2(uint32_t at) {
  uint16_t out;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(out) : "r"(at) : "memory");
  return out;
}
NF12_DEVICE uint32_t load_shared4(uint32_t at) {
  uint32_t out;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(out) : "r"(at) : "memory");
  return out;
}
// Of a word that perhaps nobody wrote.
NF12_DEVICE uint32_t peek_shared4(uint32_t at) { return load_shared4(at); }
// A number that one lane sets and others watch; it says nothing about other accesses.
NF12_DEVICE void post_word(uint32_t at, int32_t value) {
  asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
NF12_DEVICE int32_t posted_word(uint32_t at) {
  int32_t out;
  asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(out) : "r"(at) : "memory");
  return out;
}
NF12_DEVICE void await_word(uint32_t at, int32_t least) {
  while (posted_word(at) < least) __nanosleep(100);
}
NF12_DEVICE Words<2> load_shared8(uint32_t at) {
  Words<2> out;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(out.w[0]), "=r"(out.w[1])
               : "r"(at)
               : "memory");
  return out;
}
NF12_DEVICE Words<4> load_shared16(uint32_t at) {
  Words<4> out;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.w[0]), "=r"(out.w[1]), "=r"(out.w[2]), "=r"(out.w[3])
               : "r"(at)
               : "memory");
  return out;
}
NF12_DEVICE void store_shared2(uint32_t at, uint16_t value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(value) : "memory");
}
NF12_DEVICE void store_shared4(uint32_t at, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
NF12_DEVICE void store_shared16(uint32_t at, const Words<4>& value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(value.w[0]),
               "r"(value.w[1]), "r"(value.w[2]), "r"(value.w[3])
               : "memory");
}
// Four 8 x 8 matrices of BF16, transposed: lane l names the row l % 8 of matrix l / 8.
NF12_DEVICE void store_transposed(uint32_t row, const Words<4>& pairs) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(pairs.w[0]), "r"(pairs.w[1]), "r"(pairs.w[2]), "r"(pairs.w[3])
               : "memory");
}
// What this lane wrote there is seen by copies and matrix instructions that follow. It waits for
// every access of the lane, loads from global memory too.
NF12_DEVICE void show_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Computed once, and not again for every use.
template <typename Word>
NF12_DEVICE void hold(Word& value) {
  asm volatile("" : "+r"(value));
}

// ---- barriers ----

NF12_DEVICE void open_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the last open_barrier: copies know them.
NF12_DEVICE void show_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
NF12_DEVICE void arrive_barrier(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// At the same barrier of another block of the cluster.
NF12_DEVICE void arrive_barrier_of(int rank, uint32_t barrier) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
NF12_DEVICE void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Until the phase of this parity is over.
NF12_DEVICE void wait_barrier(uint32_t barrier, uint32_t parity) {
  uint32_t over;
  do {
    asm volatile(
        "{\n.reg .pred over;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\nselp.u32 %0, 1, 0, over;\n}"
        : "=r"(over)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (over == 0);
}
// Whether the phase is over, that barrier i is in or was in last.
NF12_DEVICE bool is_over(const Shared<uint32_t>& shared, int i, int phase) {
  uint32_t over;
  asm volatile(
      "{\n.reg .pred over;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\nselp.u32 %0, 1, 0, over;\n}"
      : "=r"(over)
      : "r"(shared_address(shared, i)), "r"(phase & 1)
      : "memory");
  return over != 0;
}
// Of the first `lanes` of a block.
template <int lanes>
NF12_DEVICE void sync_lanes() {
  asm volatile("bar.sync 1, %0;" ::"n"(lanes) : "memory");
}
// Of the 128 lanes of a warpgroup; 0 is sync_block's.
NF12_DEVICE void sync_group(int barrier) {
  asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
}

// ---- copies ----

NF12_DEVICE void copy16(uint32_t to, const void* p) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(p) : "memory");
}
NF12_DEVICE void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
NF12_DEVICE void prefetch_bytes(const void* p, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}
// The box of a tensor map from (column, row) on; the barrier counts all its bytes, also those past
// the tensor's edge, which come as zeros.
NF12_DEVICE void copy_box(uint32_t to, const void* map, uint32_t barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}
// The same for every block of the cluster that `blocks` has a bit of, at the same address, each
// block's own barrier counting.
NF12_DEVICE void copy_box_to(uint32_t blocks, uint32_t to, const void* map, uint32_t barrier,
                             int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "h"(static_cast<uint16_t>(blocks))
      : "memory");
}
NF12_DEVICE void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// To the same place of another block of the cluster, whose own barrier counts.
NF12_DEVICE void send_bytes(int rank, uint32_t to, uint32_t from, uint32_t bytes,
                            uint32_t barrier) {
  asm volatile(
      "{\n.reg .b32 there, counter;\nmapa.shared::cluster.u32 there, %0, %4;\n"
      "mapa.shared::cluster.u32 counter, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [there], [%1], %2, "
      "[counter];\ncp.async.bulk.commit_group;\n}" ::"r"(to),
      "r"(from), "r"(bytes), "r"(barrier), "r"(rank)
      : "memory");
}
// The other way; past the edge nothing is written. A group of its own.
NF12_DEVICE void store_box(const void* map, uint32_t from, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\n"
      "cp.async.bulk.commit_group;" ::"l"(map),
      "r"(from), "r"(column), "r"(row)
      : "memory");
}
NF12_DEVICE void store_bytes(void* to, uint32_t from, uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}
// Until all boxes of this lane but the last `left` have been read from shared memory.
template <int left>
NF12_DEVICE void await_boxes_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(left) : "memory");
}
NF12_DEVICE void await_boxes_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- global memory that other blocks read or write meanwhile ----

// Says that what this lane's boxes and bytes wrote is there, which it has awaited.
NF12_DEVICE void raise_flag(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
// This lane's copies from then on see what the flag is about.
NF12_DEVICE void await_flag(const uint64_t* flag, uint64_t value) {
  uint64_t seen;
  do {
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(flag) : "memory");
  } while (seen != value);
  asm volatile("fence.proxy.async;" ::: "memory");
}
NF12_DEVICE void store_stream16(uint8_t* p, const Words<4>& value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(value.w[0]),
               "r"(value.w[1]), "r"(value.w[2]), "r"(value.w[3])
               : "memory");
}
NF12_DEVICE void store_global2(uint8_t* p, uint16_t value) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(p), "h"(value) : "memory");
}
// What this lane wrote before is there for the copies of whoever sees the count.
NF12_DEVICE void show_to_copies_everywhere() { asm volatile("fence.proxy.async;" ::: "memory"); }
NF12_DEVICE uint32_t take_ticket(uint32_t* counter) { return atomicAdd(counter, 1u); }
NF12_DEVICE void count_up(uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
// Until as many were counted; this lane's copies from then on see what they counted.
NF12_DEVICE void await_count(const uint32_t* counter, uint32_t count) {
  uint32_t seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  } while (seen < count);
  asm volatile("fence.proxy.async;" ::: "memory");
}
// An arrive_cluster that orders memory: all that the lane did before.
NF12_DEVICE void release_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
NF12_DEVICE void sync_cluster() {
  release_cluster();
  wait_cluster();
}
// The value of a lane that each lane names for itself.
NF12_DEVICE uint32_t from_lane(uint32_t value, int lane) {
  return __shfl_sync(0xFFFFFFFFu, value, lane);
}
NF12_DEVICE uint32_t rotate_left(uint32_t value, uint32_t by) {
  return __funnelshift_l(value, value, by);
}
NF12_DEVICE uint32_t wave_sum(uint32_t value) { return __reduce_add_sync(0xFFFFFFFFu, value); }

// ---- registers of a warpgroup ----

template <int registers>
NF12_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
NF12_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// ---- matrix instructions ----

NF12_DEVICE void open_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
NF12_DEVICE void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int groups>
NF12_DEVICE void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}
// After the last wait: the compiler may not read a sum before.
template <int count>
NF12_DEVICE void settle_sums(float (&sums)[count]) {
  NF12_UNROLL
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// sums (+)= a b. Lane l of wave w: rows 16 w + l / 4 and + 8, tokens 8 j + 2 (l % 4) and + 1, at
//   sums[4 j + 2 * half + token % 2].
#define NF12_NAMES_0                                                                           \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NF12_NAMES_32                                                                            \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NF12_NAMES_64                                                                            \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, " \
  "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NF12_NAMES_96                                                                        \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
  "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "     \
  "%125, %126, %127"
#define NF12_SUMS_8(d, i)                                                                     \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define NF12_SUMS_32(d, i) \
  NF12_SUMS_8(d, i), NF12_SUMS_8(d, i + 8), NF12_SUMS_8(d, i + 16), NF12_SUMS_8(d, i + 24)
static_assert(kOperandUpper == 0x40000040);
#define NF12_MULTIPLY(tokens, names, a, b, add)                          \
  "{\n.reg .b64 left, right;\n.reg .pred adds;\nsetp.ne.b32 adds, " add  \
  ", 0;\n"                                                               \
  "mov.b64 left, {" a ", 0x40000040};\nmov.b64 right, {" b               \
  ", 0x40000040};\n"                                                     \
  "wgmma.mma_async.sync.aligned.m64n" tokens "k16.f32.bf16.bf16 {" names \
  "}, left, right, adds, 1, 1, 0, 0;\n}"

NF12_DEVICE void multiply_shared(float (&d)[64], uint32_t a, uint32_t b, bool add) {
  asm volatile(NF12_MULTIPLY("128", NF12_NAMES_0 NF12_NAMES_32, "%64", "%65", "%66")
               : NF12_SUMS_32(d, 0), NF12_SUMS_32(d, 32)
               : "r"(a), "r"(b), "r"(static_cast<uint32_t>(add)));
}
NF12_DEVICE void multiply_shared(float (&d)[96], uint32_t a, uint32_t b, bool add) {
  asm volatile(NF12_MULTIPLY("192", NF12_NAMES_0 NF12_NAMES_32 NF12_NAMES_64, "%96", "%97", "%98")
               : NF12_SUMS_32(d, 0), NF12_SUMS_32(d, 32), NF12_SUMS_32(d, 64)
               : "r"(a), "r"(b), "r"(static_cast<uint32_t>(add)));
}
NF12_DEVICE void multiply_shared(float (&d)[128], uint32_t a, uint32_t b, bool add) {
  asm volatile(NF12_MULTIPLY("256", NF12_NAMES_0 NF12_NAMES_32 NF12_NAMES_64 NF12_NAMES_96, "%128",
                             "%129", "%130")
               : NF12_SUMS_32(d, 0), NF12_SUMS_32(d, 32), NF12_SUMS_32(d, 64), NF12_SUMS_32(d, 96)
               : "r"(a), "r"(b), "r"(static_cast<uint32_t>(add)));
}
#undef NF12_MULTIPLY

// The same with A in registers: a lane's fragment of step `step`, of the wave's 16 of the 64 rows.
#define NF12_NAMES_0_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NF12_NAMES_16_8 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NF12_NAMES_32_8 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NF12_NAMES_32_16 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NF12_MULTIPLY(tokens, names, a, b)                                        \
  "{\n.reg .b64 right;\nmov.b64 right, {" b                                       \
  ", 0x40000040};\n"                                                              \
  "wgmma.mma_async.sync.aligned.m64n" tokens "k16.f32.bf16.bf16 {" names "}, {" a \
  "}, right, 1, 1, 1, 0;\n}"
#define NF12_FRAGMENT(w, step, b) \
  "r"(w[4 * step]), "r"(w[4 * step + 1]), "r"(w[4 * step + 2]), "r"(w[4 * step + 3]), "r"(b)
NF12_DEVICE void multiply_fragment(float (&d)[16], const uint32_t (&w)[16], int step, uint32_t b) {
  asm volatile(NF12_MULTIPLY("32", NF12_NAMES_0_16, "%16, %17, %18, %19", "%20")
               : NF12_SUMS_8(d, 0), NF12_SUMS_8(d, 8)
               : NF12_FRAGMENT(w, step, b));
}
NF12_DEVICE void multiply_fragment(float (&d)[24], const uint32_t (&w)[16], int step, uint32_t b) {
  asm volatile(NF12_MULTIPLY("48", NF12_NAMES_0_16 NF12_NAMES_16_8, "%24, %25, %26, %27", "%28")
               : NF12_SUMS_8(d, 0), NF12_SUMS_8(d, 8), NF12_SUMS_8(d, 16)
               : NF12_FRAGMENT(w, step, b));
}
NF12_DEVICE void multiply_fragment(float (&d)[32], const uint32_t (&w)[16], int step, uint32_t b) {
  asm volatile(NF12_MULTIPLY("64", NF12_NAMES_0, "%32, %33, %34, %35", "%36")
               : NF12_SUMS_32(d, 0)
               : NF12_FRAGMENT(w, step, b));
}
NF12_DEVICE void multiply_fragment(float (&d)[40], const uint32_t (&w)[16], int step, uint32_t b) {
  asm volatile(NF12_MULTIPLY("80", NF12_NAMES_0 NF12_NAMES_32_8, "%40, %41, %42, %43", "%44")
               : NF12_SUMS_32(d, 0), NF12_SUMS_8(d, 32)
               : NF12_FRAGMENT(w, step, b));
}
NF12_DEVICE void multiply_fragment(float (&d)[48], const uint32_t (&w)[16], int step, uint32_t b) {
  asm volatile(NF12_MULTIPLY("96", NF12_NAMES_0 NF12_NAMES_32_16, "%48, %49, %50, %51", "%52")
               : NF12_SUMS_32(d, 0), NF12_SUMS_8(d, 32), NF12_SUMS_8(d, 40)
               : NF12_FRAGMENT(w, step, b));
}
NF12_DEVICE void multiply_fragment(float (&d)[64], const uint32_t (&w)[16], int step, uint32_t b) {
  asm volatile(NF12_MULTIPLY("128", NF12_NAMES_0 NF12_NAMES_32, "%64, %65, %66, %67", "%68")
               : NF12_SUMS_32(d, 0), NF12_SUMS_32(d, 32)
               : NF12_FRAGMENT(w, step, b));
}
NF12_DEVICE void multiply_fragment(float (&d)[96], const uint32_t (&w)[16], int step, uint32_t b) {
  asm volatile(
      NF12_MULTIPLY("192", NF12_NAMES_0 NF12_NAMES_32 NF12_NAMES_64, "%96, %97, %98, %99", "%100")
      : NF12_SUMS_32(d, 0), NF12_SUMS_32(d, 32), NF12_SUMS_32(d, 64)
      : NF12_FRAGMENT(w, step, b));
}
NF12_DEVICE void multiply_fragment(float (&d)[128], const uint32_t (&w)[16], int step, uint32_t b) {
  asm volatile(NF12_MULTIPLY("256", NF12_NAMES_0 NF12_NAMES_32 NF12_NAMES_64 NF12_NAMES_96,
                             "%128, %129, %130, %131", "%132")
               : NF12_SUMS_32(d, 0), NF12_SUMS_32(d, 32), NF12_SUMS_32(d, 64), NF12_SUMS_32(d, 96)
               : NF12_FRAGMENT(w, step, b));
}
#undef NF12_FRAGMENT
#undef NF12_MULTIPLY
#undef NF12_NAMES_32_16
#undef NF12_NAMES_32_8
#undef NF12_NAMES_16_8
#undef NF12_NAMES_0_16
#undef NF12_SUMS_32
#undef NF12_SUMS_8
#undef NF12_NAMES_96
#undef NF12_NAMES_64
#undef NF12_NAMES_32
#undef NF12_NAMES_0

// Two values rounded to nearest even, `low` in the low half. For what fma returns the same bits as
// bf16_from_float_bits: a NaN of fma is 0x7FFFFFFF on these GPUs, which both make 0x7FFF.
NF12_DEVICE uint32_t bf16_pair(float low, float high) {
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

}  // namespace nf12::arch
#endif
