// The host model: the same kernels on a CPU, every lane a fiber (model.hpp runs them). All words
// that touch memory or other lanes are checked; the rest is arithmetic. Plain host code only ever
// uses NF12_INLINE from here.
#pragma once
#include "csrc/arch/words.hpp"

// always_inline: a header function compiled once with AVX-512 flags must never be the copy that the
// linker keeps for a portable caller.
#define NF12_INLINE __attribute__((always_inline)) inline
#define NF12_DEVICE inline
#define NF12_KERNEL(threads) inline void
#define NF12_KERNEL_OF(threads, registers) inline void
#define NF12_KERNEL_BLOCKS(threads, blocks) inline void
#define NF12_UNROLL
#define NF12_NO_UNROLL
#define NF12_UNROLL_BY(count)
#define NF12_SHARED(type, name, count) \
  const nf12::arch::Shared<type> name { nf12::arch::host::shared_array(#name, count) }
#define NF12_SHARED_AT_LAUNCH(type, name, count) NF12_SHARED(type, name, count)

#include "csrc/arch/fragments.hpp"

// Which vendor's fragment map the model runs with; the tests are built for both.
#ifndef NF12_HOST_FRAGMENTS
#define NF12_HOST_FRAGMENTS WmmaFragments
#endif

namespace nf12::arch {

namespace host {
struct SharedArray;
SharedArray* shared_array(const char* name, int count);
uint32_t shared_load(SharedArray* array, int i);
uint32_t shared_peek(SharedArray* array, int i);             // which perhaps nobody wrote
void shared_post(SharedArray* array, int i, uint32_t bits);  // for shared_posted alone
uint32_t shared_posted(SharedArray* array, int i);
void shared_store(SharedArray* array, int i, uint32_t bits);
void shared_add(SharedArray* array, int i, uint32_t value);
// Of half a word: several lanes may write different halves of one.
void shared_store_half(SharedArray* array, int half, uint16_t value);
// Lands when this lane awaits it, or with its arrival at a barrier, not before.
void shared_copy(SharedArray* array, int i, const Words<4>& words);
void close_copies();
// Of all but the last `groups` groups that are closed, or of all.
void await_copies(uint64_t groups, bool and_open);
void open_barrier(SharedArray* array, int i, int arrivals);
void arrive_barrier(SharedArray* array, int i);
void arrive_barrier_with_copies(SharedArray* array, int i);
void expect_bytes(SharedArray* array, int i, int bytes);
void wait_barrier(SharedArray* array, int i, int phase);
bool is_over(SharedArray* array, int i, int phase);
void send_shared(int rank, SharedArray* array, int i, int barrier, const Words<2>& words);
void wait_until_equal(const uint64_t* p, uint64_t value);
// Throws unless [p, p + bytes) lies in a registered buffer and p is aligned to `alignment`.
void check_read(const void* p, int bytes, int alignment);
void check_write(const void* p, int bytes, int alignment);
// As check_write, but bytes may be changed more than once.
void check_atomic(const void* p, int bytes);
// Throws unless every lane of the wave passes the same value at the same point.
void check_uniform(const char* word, uint64_t value);
// Throws unless 0 <= slot < count.
void check_slot(int slot, int count);
// Brings a value to a meeting of the wave and takes away the one that lane `from` brought; what
// `common` says must be the same for all lanes.
uint32_t meet_wave(const char* word, uint64_t common, uint32_t value, int from);
uint32_t meet_wave_ballot(bool condition);
void check_shared_alignment(int word, int count);
// Every lane of a wave brings `own`; the result is what lane 0 brought, then lane 1, ...
const Words<8>* exchange(const char* word, const Words<8>& own);
}  // namespace host

int lane();
int wave();
int block_x();
int block_y();
void sync_block();
uint32_t broadcast(uint32_t value, int from);

template <typename T>
inline T read_global(const void* base, uint32_t offset, int alignment) {
  const auto p = reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(base) + offset);
  host::check_read(p, sizeof(T), alignment);
  T out;
  __builtin_memcpy(&out, p, sizeof(T));
  return out;
}
inline Words<4> load_stream16(const uint8_t* base, uint32_t offset) {
  host::check_uniform("load_stream16", reinterpret_cast<uintptr_t>(base));
  return read_global<Words<4>>(base, offset, 16);
}
inline Words<4> load16(const uint32_t* base, uint32_t offset) {
  return read_global<Words<4>>(base, offset, 16);
}
inline uint16_t load2(const uint16_t* base, uint32_t offset) {
  return read_global<uint16_t>(base, offset, 2);
}
inline float load4(const float* base, uint32_t offset) {
  return read_global<float>(base, offset, 4);
}
inline void store2(uint16_t* p, uint16_t value) {
  host::check_write(p, 2, 2);
  *p = value;
}
inline void store4(float* p, float value) {
  host::check_write(p, 4, 4);
  *p = value;
}
template <int count, int alignment = 4 * count>
inline Words<count> load_words(const void* p) {
  return read_global<Words<count>>(p, 0, alignment);
}
template <int count, int alignment = 4 * count>
inline void store_words(void* p, const Words<count>& words) {
  host::check_write(p, 4 * count, alignment);
  __builtin_memcpy(p, &words, sizeof(words));
}
inline void atomic_add8(uint64_t* p, uint64_t value) {
  host::check_atomic(p, 8);
  *p += value;
}
inline void atomic_or4(uint32_t* p, uint32_t value) {
  host::check_atomic(p, 4);
  *p |= value;
}
inline void atomic_min4(uint32_t* p, uint32_t value) {
  host::check_atomic(p, 4);
  if (value < *p) *p = value;
}
template <int count>
inline Words<count> uniform_load(const void* base, uint32_t offset) {
  host::check_uniform("uniform_load", reinterpret_cast<uintptr_t>(base) + offset);
  return read_global<Words<count>>(base, offset, 4);
}

inline uint32_t ballot(bool condition) { return host::meet_wave_ballot(condition); }
template <int mask>
inline uint32_t swap_in_quad(uint32_t value) {
  static_assert(mask >= 1 && mask <= 3);
  return host::meet_wave("swap_in_quad", mask, value, lane() ^ mask);
}

// a.lo * b.lo + a.hi * b.hi + c, BF16 pairs, FP32 sum: two multiply-adds, the low half first.
inline float dot2(uint32_t a, uint32_t b, float c) {
  const auto float_from = [](uint32_t bits) { return __builtin_bit_cast(float, bits); };
  const float low = __builtin_fmaf(float_from(a << 16), float_from(b << 16), c);
  return __builtin_fmaf(float_from(a & 0xFFFF0000u), float_from(b & 0xFFFF0000u), low);
}

template <int b0, int b1, int b2, int b3>
inline uint32_t permute_bytes(uint32_t low, uint32_t high) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  const auto byte = [bytes](int i) { return static_cast<uint32_t>(bytes >> 8 * i & 0xFF); };
  return byte(b0) | byte(b1) << 8 | byte(b2) << 16 | byte(b3) << 24;
}
inline uint32_t and_or(uint32_t a, uint32_t mask, uint32_t b) { return (a & mask) | b; }
inline uint32_t merge_bits(uint32_t mask, uint32_t a, uint32_t b) {
  return (a & mask) | (b & ~mask);
}
inline void replace_bits(uint32_t& w, uint32_t mask, uint32_t value) {
  w = merge_bits(mask, value, w);
}
inline void replace16(uint32_t* w, int slot, uint32_t mask, uint32_t value) {
  host::check_uniform("replace16", static_cast<uint32_t>(slot));
  host::check_slot(slot, 16);
  replace_bits(w[slot], mask, value);
}

template <typename T>
inline T in_register(T value) {
  host::check_uniform("in_register", (uint64_t)value);
  return value;
}
template <int count>
inline void arrive(Words<count>&) {}
template <typename T>
inline void settle(T&) {}
inline void hold_order() {}
template <typename Params>
inline const Params& reread_arguments(const Params& p) {
  return p;
}

template <typename T>
struct Shared {
  static_assert(sizeof(T) == 4, "the model keeps its records per 32-bit word");
  host::SharedArray* array;
  T load(int i) const { return __builtin_bit_cast(T, host::shared_load(array, i)); }
  void store(int i, T value) const {
    host::shared_store(array, i, __builtin_bit_cast(uint32_t, value));
  }
  void add(int i, T value) const {
    static_assert(static_cast<T>(-1) > 0, "counters");
    host::shared_add(array, i, value);
  }
};

inline Words<2> load_stream8(const uint8_t* base, uint32_t offset) {
  host::check_uniform("load_stream8", reinterpret_cast<uintptr_t>(base));
  return read_global<Words<2>>(base, offset, 8);
}
template <int count>
inline Words<count> load_stream(const void* p) {
  return read_global<Words<count>>(p, 0, 4 * count);
}
template <int alignment>
inline void store_stream(void* p, const Words<4>& words) {
  store_words<4, alignment>(p, words);
}
inline Words<4> load16_anywhere(const uint16_t* base, uint32_t offset) {
  return read_global<Words<4>>(base, offset, 2);
}

// Between the two no lane may touch shared memory; the barrier itself is at the wait.
void signal_block();
void wait_block();

template <int count>
inline Words<count> load_shared(const Shared<uint32_t>& shared, int i) {
  host::check_shared_alignment(i, count);
  Words<count> out;
  for (int j = 0; j < count; ++j) out.w[j] = shared.load(i + j);
  return out;
}
inline void store_shared16(const Shared<uint32_t>& shared, int i, Words<4> value) {
  host::check_shared_alignment(i, 4);
  for (int j = 0; j < 4; ++j) shared.store(i + j, value.w[j]);
}

using Fragments = NF12_HOST_FRAGMENTS;

struct MatrixSums {
  float values[kFragmentSums] = {};
  float get(int i) const { return values[i]; }
};

// Columns of a step in ascending order; a product of two BF16 is exact in FP32. The hardware's
// order is its own.
inline void multiply_fragment(const uint32_t* w, int step, const Words<4>& x, MatrixSums& sums) {
  constexpr int pairs = Fragments::kStepColumns / 2;
  Words<8> own;
  for (int i = 0; i < 4; ++i) {
    own.w[i] =
        w[slot_of_pair<Fragments>(i / pairs * 16 / Fragments::kRuns + step * pairs + i % pairs)];
    own.w[4 + i] = x.w[i];
  }
  const Words<8>* all = host::exchange("multiply_fragment", own);
  const auto first_word = [](int row) {
    return Fragments::slot(row, 0) % Fragments::kRuns * pairs;
  };
  const auto low = [](uint32_t pair) { return __builtin_bit_cast(float, pair << 16); };
  const auto high = [](uint32_t pair) { return __builtin_bit_cast(float, pair & 0xFFFF0000u); };
  for (int s = 0; s < kFragmentSums; ++s) {
    const int row = Fragments::sum_row(lane(), s), token = Fragments::sum_token(lane(), s);
    float sum = sums.values[s];
    for (int column = 0; column < 64; column += Fragments::kRunColumns) {
      const uint32_t* a = &all[Fragments::owner(row, column)].w[first_word(row)];
      const uint32_t* b = &all[Fragments::owner(token, column)].w[4 + first_word(token)];
      for (int i = 0; i < pairs; ++i) {
        sum += low(a[i]) * low(b[i]);
        sum += high(a[i]) * high(b[i]);
      }
    }
    sums.values[s] = sum;
  }
}

// One step of one tile and 8 tokens, with the map of MmaFragments: half `half` of `x` holds a
// lane's four columns. Columns in ascending order, as above.
struct HalfSums {
  float values[4] = {};
};
inline void multiply_half_fragment(const uint32_t* w, int step, const Words<4>& x, int half,
                                   HalfSums& sums) {
  const Words<8>* all = host::exchange(
      "multiply_half_fragment", {{w[4 * step], w[4 * step + 2], w[4 * step + 1], w[4 * step + 3],
                                  x.w[2 * half], x.w[2 * half + 1], 0, 0}});
  const auto low = [](uint32_t pair) { return __builtin_bit_cast(float, pair << 16); };
  const auto high = [](uint32_t pair) { return __builtin_bit_cast(float, pair & 0xFFFF0000u); };
  for (int s = 0; s < 4; ++s) {
    const int row = MmaFragments::sum_row(lane(), s), token = MmaFragments::sum_token(lane(), s);
    float sum = sums.values[s];
    for (int column = 0; column < 64; column += MmaFragments::kRunColumns) {
      const uint32_t* a = &all[MmaFragments::owner(row, column)].w[row / 8 * 2];
      const uint32_t* b = &all[MmaFragments::owner(token, column)].w[4];
      for (int i = 0; i < 2; ++i) {
        sum += low(a[i]) * low(b[i]);
        sum += high(a[i]) * high(b[i]);
      }
    }
    sums.values[s] = sum;
  }
}

void sync_wave();
inline uint32_t multiply_high(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
}
inline void post_sum(void* at, float sum, uint64_t flag) {
  host::check_atomic(at, 16);
  __builtin_memcpy(at, &sum, 4);
  __builtin_memcpy(static_cast<char*>(at) + 8, &flag, 8);
}
inline float take_sum(void* at, uint64_t flag) {
  host::check_atomic(at, 16);
  host::wait_until_equal(reinterpret_cast<const uint64_t*>(static_cast<char*>(at) + 8), flag);
  float sum;
  __builtin_memcpy(&sum, at, 4);
  post_sum(at, 0, 0);
  return sum;
}
inline void prefetch(const void* p) { host::check_read(p, 1, 1); }
inline void load16_if(bool wanted, const void* p, Words<4>& words) {
  if (wanted) words = read_global<Words<4>>(p, 0, 16);
}
inline void store_shared2(const Shared<uint32_t>& shared, int half, uint16_t value) {
  host::shared_store_half(shared.array, half, value);
}
inline void copy_shared16_if(bool wanted, const Shared<uint32_t>& shared, int i, const void* p) {
  host::check_shared_alignment(i, 4);
  if (wanted) host::shared_copy(shared.array, i, read_global<Words<4>>(p, 0, 16));
}
void await_copies();
inline void close_copies() { host::close_copies(); }
template <int groups>
inline void await_copies_but() {
  host::await_copies(groups, false);
}

// A barrier in two words of shared memory that counts arrivals, phase after phase.
inline void open_barrier(const Shared<uint32_t>& shared, int i, int arrivals) {
  host::open_barrier(shared.array, i, arrivals);
}
inline void arrive_barrier(const Shared<uint32_t>& shared, int i) {
  host::arrive_barrier(shared.array, i);
}
// Once this lane's copies so far have landed; brings them and nothing else.
inline void arrive_barrier_with_copies(const Shared<uint32_t>& shared, int i) {
  host::arrive_barrier_with_copies(shared.array, i);
}
inline void wait_barrier(const Shared<uint32_t>& shared, int i, int phase) {
  host::wait_barrier(shared.array, i, phase);
}

// Clusters. The arrival orders no memory: after the wait all blocks run, and their barriers are
// open.
int cluster_rank();
void arrive_cluster();
void wait_cluster();
inline void send_shared8(int rank, const Shared<uint32_t>& shared, int i, int barrier,
                         Words<2> value) {
  host::send_shared(rank, shared.array, i, barrier, value);
}
inline void expect_bytes(const Shared<uint32_t>& shared, int barrier, int bytes) {
  host::expect_bytes(shared.array, barrier, bytes);
}
inline void store_shared8(const Shared<uint32_t>& shared, int i, Words<2> value) {
  host::check_shared_alignment(i, 2);
  for (int j = 0; j < 2; ++j) shared.store(i + j, value.w[j]);
}

// Kernels run one after another here.
inline void start_successor() {}
inline void await_predecessor() {}

}  // namespace nf12::arch
