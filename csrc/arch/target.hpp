// The only file that asks which compiler it is under. It picks the policy whose words every kernel
// is written in; the words mean the same everywhere:
//
//   wave    32 lanes that run one instruction (AMD: wave32, NVIDIA: warp, host model: 32 fibers)
//   block   waves that share memory and meet at sync_block()
//   uniform a value that all 32 lanes of a wave hold alike; it may live in a scalar register
//
//   lane() wave() block_x() block_y()       who runs; wave() is uniform
//   load_stream16(base, offset)             16 bytes of weights, read once, past the near caches
//   load16 load4 load2 (base, offset)       global memory: uniform base, a lane's offset in bytes
//   store4 store2 (pointer, value)
//   load_words<count, alignment>(pointer), store_words likewise: a lane's own address
//   atomic_add8 atomic_or4 atomic_min4      global memory, no result: any order gives the same
//   uniform_load<words>(base, offset)       same address in every lane
//   broadcast(value, lane)                  one lane's value for the whole wave
//   ballot(condition)                       bit i is lane i's condition; uniform
//   swap_in_quad<mask>(value)               the value of lane ^ mask, mask 1, 2 or 3
//   load_stream8, load16_anywhere           likewise; x at any multiple of two
//   signal_block() wait_block()             the halves of sync_block(): nothing shared in between
//   load_shared<count> store_shared16       neighbouring words of shared memory
//   Fragments, MatrixSums,                  who holds what of a tile (fragments.hpp), and a matrix
//   multiply_fragment(w, step, x, sums)     step of 16 rows x 16 tokens
//   dot2 permute_bytes merge_bits           BF16 pairs and their bits; replace_bits in place
//   replace16(w, slot, mask, value)         one of sixteen registers, chosen by a uniform number
//   in_register(value)                      a uniform value the compiler may not take apart
//   arrive(words) settle(value)             fences for one value: its uses stay below, its making
//   hold_order()                            above; and one for all that the scheduler could move
//   reread_arguments(params)                for rare paths: frees the registers elsewhere
//   sync_wave()                             the wave's lanes see each other's shared memory
//   copy_shared16_if await_copies           16 bytes from global to shared memory, meanwhile
//   load_stream<count>(pointer)             as load_stream16, at a lane's own address
//   store_stream<alignment>(pointer, words) 16 bytes as by store_words, not read again soon
//   prefetch(pointer) load16_if(wanted,..)  toward the L2 cache; a load or the value as it was
//   start_successor() await_predecessor()   dependent launch: the next kernel may start; the one
//                                           before is done, with all it wrote
//   HalfSums multiply_half_fragment         a matrix step of 16 rows x 8 tokens
//   close_copies await_copies_but<groups>   copies in groups, of which the last few may be on their
//                                           way
//   open_barrier arrive_barrier             barriers in shared memory that count arrivals, phase
//   wait_barrier                            after phase
//   arrive_barrier_with_copies              an arrival once the lane's copies have landed
//   cluster_rank arrive_cluster             blocks of a cluster: which one this is, and that all
//   wait_cluster                            run; the arrival orders no memory
//   send_shared8 expect_bytes               words to another block of the cluster, whose barrier
//                                           counts the bytes
//   store_shared8                           as store_shared16
//                                           (from sync_wave on: not on gfx12)
//   NF12_KERNEL(threads), _OF(threads, registers)
//   NF12_KERNEL_BLOCKS(threads, blocks)     with few enough registers for so many blocks at once;
//                                           not on gfx12
//   NF12_SHARED(type, name, count)          memory of a block: name.load(i), name.store(i, value),
//                                           name.add(i, value) atomically
//   NF12_SHARED_AT_LAUNCH(type, name, count) likewise, its bytes given by the launch
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__HIP__)
#include "csrc/arch/gfx12/policy.hpp"
#elif defined(__CUDACC__)
#include "csrc/arch/nvidia/policy.hpp"
#else
#include "csrc/arch/host/policy.hpp"
#endif
