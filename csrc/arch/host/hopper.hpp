// The words of sm_90a (nvidia/hopper.hpp) in the host model. What is checked beyond model.hpp:
//
//   proxies     bytes that a lane wrote, by cp.async too, and that a copy or a matrix instruction
//               reads or a copy overwrites, without show_to_copies by that lane in between, or
//               without an order between that and whoever sets them out
//   copies      set out at once and land some time later, the barrier counting. Reported: a copy
//               into words that somebody still uses, an access before it has landed and its phase
//               been waited for, a write of words that copies read before await_boxes_read, a
//               flag raised before await_boxes_written, a barrier that has not been shown to
//               copies, the tensor unit's rules of alignment, a lane that ends while its copies
//               read
//   products    happen as late as the wait for them allows, once all four waves of a group have set
//               them out. Reported: a write of words that they read, registers of A that have
//               changed meanwhile, sums settled before, products without open_products, lanes that
//               name different operands, products that nobody awaited
//   barriers    a wait by parity means the phase after the one that the lane waited for last
//   registers   of a block are what its launch gave (65,536 over its lanes, by eights). Reported: a
//               warpgroup whose waves end with different numbers; more than there are, as a
//               deadlock
//
// Not modelled: the order of accesses to global memory, and what needs another order of blocks to
// show.
#pragma once
#include <bit>

#include "csrc/arch/target.hpp"

#define NF12_HOPPER 1
#define NF12_ARGUMENT(type) const type
#define NF12_SHARED_ALIGNED(name) \
  const nf12::arch::Shared<uint32_t> name { nf12::arch::host::shared_of_launch(#name) }

namespace nf12::arch {

namespace host {
// What the model's machine puts in the place of a tensor map.
struct Map {
  const void* base;
  int64_t columns, rows;
  int64_t row_stride_bytes;
  int element_bytes, box_columns, box_rows;
  bool permuted;
};

SharedArray* shared_of_launch(const char* name);
uint32_t address_of(const SharedArray* array, int i);
// Of the own block.
struct Place {
  SharedArray* array;
  int word;
};
Place place_of(uint32_t address, int alignment);
void show_to_copies();
void show_barriers();
void arrive_barrier_of(int rank, const Place& barrier);
void wait_parity(const Place& barrier, uint32_t parity);
void sync_lanes(const char* word, int id, int lanes);
void copy_box(uint32_t blocks, uint32_t to, const void* map, uint32_t barrier, int column, int row);
void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier);
void send_bytes(int rank, uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier);
void store_box(const void* map, uint32_t from, int column, int row);
void store_bytes(void* to, uint32_t from, uint32_t bytes);
void await_reads(int left);
void await_writes();
void check_written();  // what this lane's boxes and bytes write
void set_registers(const char* word, int registers, bool takes);
void open_products();
void close_products();
void await_products(int groups);
void check_settled(const float* sums);
// A: at `a`, or the fragment in `registers`.
void multiply(float* sums, int count, uint32_t a, const uint32_t* registers, uint32_t b, bool add);
void wait_until_least(const uint32_t* p, uint32_t value);
void wait_until_posted(uint32_t at, int32_t least);
void release_cluster();
}  // namespace host

// ---- shared memory by its address ----

inline uint32_t shared_address(const Shared<uint32_t>& shared, int i) {
  return host::address_of(shared.array, i);
}
template <int count>
inline Words<count> load_shared_at(uint32_t at) {
  const host::Place place = host::place_of(at, 4 * count);
  Words<count> out;
  for (int j = 0; j < count; ++j) out.w[j] = host::shared_load(place.array, place.word + j);
  return out;
}
inline uint32_t load_shared2(uint32_t at) {
  return load_shared_at<1>(at & ~2u).w[0] >> at / 2 % 2 * 16 & 0xFFFF;
}
inline uint32_t load_shared4(uint32_t at) { return load_shared_at<1>(at).w[0]; }
inline Words<2> load_shared8(uint32_t at) { return load_shared_at<2>(at); }
inline Words<4> load_shared16(uint32_t at) { return load_shared_at<4>(at); }
inline uint32_t peek_shared4(uint32_t at) {
  const host::Place place = host::place_of(at, 4);
  return host::shared_peek(place.array, place.word);
}
inline void post_word(uint32_t at, int32_t value) {
  const host::Place place = host::place_of(at, 4);
  host::shared_post(place.array, place.word, static_cast<uint32_t>(value));
}
inline int32_t posted_word(uint32_t at) {
  const host::Place place = host::place_of(at, 4);
  return static_cast<int32_t>(host::shared_posted(place.array, place.word));
}
inline void await_word(uint32_t at, int32_t least) { host::wait_until_posted(at, least); }
inline void store_shared2(uint32_t at, uint16_t value) {
  const host::Place place = host::place_of(at & ~2u, 4);
  host::shared_store_half(place.array, 2 * place.word + static_cast<int>(at / 2 % 2), value);
}
inline void store_shared4(uint32_t at, uint32_t value) {
  const host::Place place = host::place_of(at, 4);
  host::shared_store(place.array, place.word, value);
}
inline void store_shared16(uint32_t at, const Words<4>& value) {
  const host::Place place = host::place_of(at, 16);
  for (int j = 0; j < 4; ++j) host::shared_store(place.array, place.word + j, value.w[j]);
}
// A lane writes the row that it names: element i comes from lane 4 i + row / 2.
inline void store_transposed(uint32_t row, const Words<4>& pairs) {
  const Words<8>* all = host::exchange(
      "store_transposed", {{pairs.w[0], pairs.w[1], pairs.w[2], pairs.w[3], 0, 0, 0, 0}});
  const int matrix = lane() / 8, own = lane() % 8;
  const auto element = [&](int i) {
    return all[4 * i + own / 2].w[matrix] >> own % 2 * 16 & 0xFFFF;
  };
  Words<4> words;
  for (int i = 0; i < 4; ++i) words.w[i] = element(2 * i) | element(2 * i + 1) << 16;
  store_shared16(row, words);
}
inline void show_to_copies() { host::show_to_copies(); }
template <typename Word>
inline void hold(Word&) {}

// ---- barriers ----

inline void open_barrier(uint32_t barrier, int arrivals) {
  const host::Place place = host::place_of(barrier, 8);
  host::open_barrier(place.array, place.word, arrivals);
}
inline void show_barriers() { host::show_barriers(); }
inline void arrive_barrier(uint32_t barrier) {
  const host::Place place = host::place_of(barrier, 8);
  host::arrive_barrier(place.array, place.word);
}
inline void arrive_barrier_of(int rank, uint32_t barrier) {
  host::arrive_barrier_of(rank, host::place_of(barrier, 8));
}
inline void expect_bytes(uint32_t barrier, uint32_t bytes) {
  const host::Place place = host::place_of(barrier, 8);
  host::expect_bytes(place.array, place.word, static_cast<int>(bytes));
}
inline void wait_barrier(uint32_t barrier, uint32_t parity) {
  host::wait_parity(host::place_of(barrier, 8), parity);
}
inline bool is_over(const Shared<uint32_t>& shared, int i, int phase) {
  return host::is_over(shared.array, i, phase);
}
template <int lanes>
inline void sync_lanes() {
  host::sync_lanes("sync_lanes", 1, lanes);
}
inline void sync_group(int barrier) { host::sync_lanes("sync_group", barrier, kGroupLanes); }

// ---- copies ----

inline void copy16(uint32_t to, const void* p) {
  const host::Place place = host::place_of(to, 16);
  copy_shared16_if(true, {place.array}, place.word, p);
}
inline void prefetch_map(const void*) {}
inline void prefetch_bytes(const void* p, uint32_t bytes) {
  host::check_read(p, static_cast<int>(bytes), 16);
}
inline void copy_box(uint32_t to, const void* map, uint32_t barrier, int column, int row) {
  host::copy_box(1u << cluster_rank(), to, map, barrier, column, row);
}
inline void copy_box_to(uint32_t blocks, uint32_t to, const void* map, uint32_t barrier, int column,
                        int row) {
  host::copy_box(blocks, to, map, barrier, column, row);
}
inline void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  host::copy_bytes(to, from, bytes, barrier);
}
inline void send_bytes(int rank, uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
  host::send_bytes(rank, to, from, bytes, barrier);
}
inline void store_box(const void* map, uint32_t from, int column, int row) {
  host::store_box(map, from, column, row);
}
inline void store_bytes(void* to, uint32_t from, uint32_t bytes) {
  host::store_bytes(to, from, bytes);
}
template <int left>
inline void await_boxes_read() {
  host::await_reads(left);
}
inline void await_boxes_written() { host::await_writes(); }

// ---- global memory that other blocks read or write meanwhile ----

inline void raise_flag(uint64_t* flag, uint64_t value) {
  host::check_atomic(flag, 8);
  host::check_written();
  *flag = value;
}
inline void await_flag(const uint64_t* flag, uint64_t value) {
  host::wait_until_equal(flag, value);
}
inline void store_stream16(uint8_t* p, const Words<4>& value) {
  host::check_atomic(p, 16);
  __builtin_memcpy(p, &value, 16);
}
inline void store_global2(uint8_t* p, uint16_t value) {
  host::check_atomic(p, 2);
  __builtin_memcpy(p, &value, 2);
}
inline void show_to_copies_everywhere() {}
inline uint32_t take_ticket(uint32_t* counter) {
  host::check_atomic(counter, 4);
  return (*counter)++;
}
inline void count_up(uint32_t* counter) {
  host::check_atomic(counter, 4);
  ++*counter;
}
inline void await_count(const uint32_t* counter, uint32_t count) {
  host::wait_until_least(counter, count);
}
inline void release_cluster() { host::release_cluster(); }
inline void sync_cluster() {
  release_cluster();
  wait_cluster();
}
inline uint32_t from_lane(uint32_t value, int lane) {
  return host::meet_wave("from_lane", 0, value, lane);
}
inline uint32_t rotate_left(uint32_t value, uint32_t by) {
  return std::rotl(value, static_cast<int>(by));
}
inline uint32_t wave_sum(uint32_t value) {
  const Words<8>* all = host::exchange("wave_sum", {{value, 0, 0, 0, 0, 0, 0, 0}});
  uint32_t sum = 0;
  for (int i = 0; i < kWave; ++i) sum += all[i].w[0];
  return sum;
}

// ---- registers of a warpgroup ----

template <int registers>
inline void give_registers() {
  static_assert(registers % 8 == 0 && registers >= 24 && registers <= 256);
  host::set_registers("give_registers", registers, false);
}
template <int registers>
inline void take_registers() {
  static_assert(registers % 8 == 0 && registers >= 24 && registers <= 256);
  host::set_registers("take_registers", registers, true);
}

// ---- matrix instructions ----

inline void open_products() { host::open_products(); }
inline void close_products() { host::close_products(); }
template <int groups>
inline void await_products() {
  host::await_products(groups);
}
template <int count>
inline void settle_sums(float (&sums)[count]) {
  host::check_settled(sums);
}
template <int count>
inline void multiply_shared(float (&d)[count], uint32_t a, uint32_t b, bool add) {
  static_assert(count == 64 || count == 96 || count == 128);
  host::multiply(d, count, a, nullptr, b, add);
}
template <int count>
inline void multiply_fragment(float (&d)[count], const uint32_t (&w)[16], int step, uint32_t b) {
  static_assert(count % 8 == 0 && count >= 16 && count <= 128);
  host::multiply(d, count, 0, w + 4 * step, b, true);
}

inline uint32_t bf16_pair(float low, float high) {
  const auto rounded = [](float value) -> uint32_t {
    const auto bits = __builtin_bit_cast(uint32_t, value);
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  };
  return rounded(low) | rounded(high) << 16;
}

}  // namespace nf12::arch
