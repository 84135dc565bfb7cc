// The words of sm_90a in the host model: copies by the tensor unit, matrix instructions, registers.
#include "csrc/arch/hopper.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include "csrc/arch/host/cluster.hpp"

namespace nf12::arch::host {
namespace {

Wave& own_wave() { return current->waves[current->running / kWave]; }

// `count` words from an address on, of a block's shared memory.
Stretch stretch_at(uint32_t address, int count, bool permuted = false) {
  const Place place = place_of(address, permuted ? 32 : 16);
  return {place.array, place.word, count, permuted};
}

Barrier& barrier_of_copy(SharedArray* array, int i) {
  Barrier& barrier = barrier_at(array, i, "copies count at");
  if (!barrier.shown)
    report("copies count at the barrier at " + name_of_word(array, i) +
           ", which has not been shown to them");
  return barrier;
}

Map map_at(const void* p) {
  Map map;
  std::memcpy(&map, p, sizeof(map));
  return map;
}

// Of a box's row i, the bytes that lie inside the tensor; where they are in memory.
struct BoxRow {
  int bytes;
  char* memory;
};
BoxRow box_row(const Map& map, int column, int row) {
  if (row < 0 || column < 0 || row >= map.rows || column >= map.columns) return {0, nullptr};
  const int64_t columns = std::min<int64_t>(map.box_columns, map.columns - column);
  const auto* base = static_cast<const char*>(map.base);
  return {
      static_cast<int>(columns * map.element_bytes),
      const_cast<char*>(base) + row * map.row_stride_bytes + int64_t{column} * map.element_bytes};
}

Stretch box_at(const Map& map, uint32_t address) {
  if (address % (map.permuted ? 1024 : 128) != 0)
    report("a box in shared memory at " + std::to_string(address));
  const int bytes = map.box_rows * map.box_columns * map.element_bytes;
  return stretch_at(address, bytes / 4, map.permuted);
}

float as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
float half_of(uint32_t pair, int half) {
  return as_float(half == 0 ? pair << 16 : pair & 0xFFFF0000u);
}

// Rows of 64 columns; of each the eight words that an instruction takes.
Stretch operand(uint32_t bits, int first_row) {
  if (bits >> 14 != kOperandLayout >> 14) report("an operand past the end of its field");
  return stretch_at(static_cast<uint32_t>((bits & 0x3FFF) << 4) + 128 * first_row, 8, true);
}
Stretch row_of(const Stretch& operand, int row) {
  return {operand.array, operand.i + 32 * row, 8, true};
}

void run(const Product& product) {
  constexpr int kRows = 16, kColumns = 16;
  const auto load = [](const Stretch& words, float (&out)[kColumns]) {
    for (int k = 0; k < kColumns; ++k)
      out[k] = half_of(words.array->words[words.word(k / 2)].bits, k % 2);
  };
  float a[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    if (product.a.array != nullptr) {
      load(row_of(product.a, r), a[r]);
      continue;
    }
    for (int k = 0; k < kColumns; ++k)
      a[r][k] = half_of(product.lanes[r % 8 * 4 + k % 8 / 2].held.w[r / 8 + k / 8 * 2], k % 2);
  }
  for (int t = 0; t < product.tokens; ++t) {
    float b[kColumns];
    if (product.unwritten[t])
      std::fill(std::begin(b), std::end(b), std::numeric_limits<float>::quiet_NaN());
    else
      load(row_of(product.b, t), b);
    for (int r = 0; r < kRows; ++r) {
      float& sum = product.lanes[r % 8 * 4 + t % 8 / 2].sums[t / 8 * 4 + r / 8 * 2 + t % 2];
      float total = product.adds ? sum : 0;
      for (int k = 0; k < kColumns; ++k) total += a[r][k] * b[k];
      sum = total;
    }
  }
}

bool is_unwritten(const Stretch& row) {
  for (int j = 0; j < row.count; ++j) {
    const SharedWord& word = row.array->words[row.word(j)];
    if (word.written || word.in_flight) return false;
  }
  return true;
}

template <typename Use>
void for_each_row(const Product& product, const Use& use) {
  for (int t = 0; t < product.tokens; ++t)
    if (!product.unwritten[t]) use(row_of(product.b, t));
  if (product.a.array != nullptr)
    for (int r = 0; r < 16; ++r) use(row_of(product.a, r));
}

// Of the present wave, those of all groups before `over`.
void finish_products(uint64_t over) {
  Wave& wave = own_wave();
  const int lane = lane_of_products(current->running / kWave);
  const Position position = {0, static_cast<uint32_t>(wave.finished)};
  while (!wave.products.empty() && wave.products.front().group < over) {
    const Product& product = wave.products.front();
    run(product);
    for_each_row(product, [&](const Stretch& row) { end_read(row, self().known, lane, position); });
    wave.products.pop_front();
    ++wave.finished;
  }
}

}  // namespace

void check_end_of_lane() {
  if (!self().reading.empty()) report("ends while its copies may still read shared memory");
  if (!own_wave().products.empty()) report("ends with products that it has not awaited");
}

void check_registers_at_end(int first_lane) {
  for (int i = 0; i < current->launch.waves; ++i) {
    const int wave = first_lane / kWave + i, of_group = wave - i % kGroupWaves;
    if (current->waves[wave].registers != current->waves[of_group].registers)
      report("wave " + std::to_string(i) + " has " +
             std::to_string(current->waves[wave].registers) +
             " registers a lane where another of its group has " +
             std::to_string(current->waves[of_group].registers));
  }
}

// ---- shared memory by its address ----

SharedArray* shared_of_launch(const char* name) {
  return shared_array(name, current->launch.shared_bytes / 4);
}

uint32_t address_of(const SharedArray* array, int i) {
  return array->address + 4 * static_cast<uint32_t>(i);
}

Place place_of(uint32_t address, int alignment) {
  if (address % static_cast<uint32_t>(alignment) != 0)
    report("shared address " + std::to_string(address) + " is not aligned to " +
           std::to_string(alignment));
  for (auto& [name, array] : current->own_block().shared)
    if (address >= array.address && address < array.address + 4 * array.words.size())
      return {&array, static_cast<int>(address - array.address) / 4};
  report("shared address " + std::to_string(address) + " is in none of the block's arrays");
}

void show_to_copies() {
  Fiber& fiber = self();
  const int wave = current->running / kWave;
  const uint32_t bit = 1u << current->running % kWave;
  for (SharedWord* word : fiber.hidden) {
    if (word->hidden_wave != wave || (word->hidden_lanes & bit) == 0) continue;
    word->hidden_lanes &= ~bit;
    word->shown.note(current->running, fiber.position);
  }
  fiber.hidden.clear();
}

// ---- barriers ----

void show_barriers() {
  for (const int barrier : self().opened) current->barriers[barrier].shown = true;
}

void arrive_barrier_of(int rank, const Place& barrier) {
  arrive_barrier(array_of_block(rank, barrier.array), barrier.word);
}

void wait_parity(const Place& place, uint32_t parity) {
  const Barrier& barrier = barrier_at(place.array, place.word, "waits at");
  const auto [last, first] = self().waited.try_emplace(barrier.id, -static_cast<int>(parity));
  if (!first && (last->second & 1) != static_cast<int>(parity)) ++last->second;
  wait_barrier(place.array, place.word, last->second);
}

void sync_lanes(const char* word, int id, int lanes) {
  meet(State::kAtLanes, {word, static_cast<uint64_t>(lanes << 8 | id)}, true);
}

void release_cluster() {
  Fiber& fiber = self();
  ++fiber.position.arrivals;
  current->opened.join(fiber.known);
  current->opened.add_lane(current->running, fiber.position);
  arrive_cluster();
}

// ---- copies ----

void copy_box(uint32_t blocks, uint32_t to, const void* p, uint32_t barrier, int column, int row) {
  const Map map = map_at(p);
  const Stretch box = box_at(map, to);
  const Place counter = place_of(barrier, 8);
  const int row_bytes = map.box_columns * map.element_bytes;
  std::vector<uint32_t> words(box.count);
  for (int i = 0; i < map.box_rows; ++i) {
    const BoxRow from = box_row(map, column, row + i);
    if (from.bytes == 0) continue;
    check_read(from.memory, from.bytes, 1);
    std::memcpy(&words[i * row_bytes / 4], from.memory, from.bytes);
  }
  for (int rank = 0; rank < 32; ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    Stretch there = box;
    there.array = array_of_block(rank, box.array);
    begin_write(there, words, barrier_of_copy(array_of_block(rank, counter.array), counter.word),
                rank != cluster_rank());
  }
}

void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  if (bytes == 0 || bytes % 16 != 0) report("copies " + std::to_string(bytes) + " bytes");
  check_read(from, static_cast<int>(bytes), 16);
  std::vector<uint32_t> words(bytes / 4);
  std::memcpy(words.data(), from, bytes);
  const Place counter = place_of(barrier, 8);
  begin_write(stretch_at(to, static_cast<int>(bytes / 4)), std::move(words),
              barrier_of_copy(counter.array, counter.word));
}

void send_bytes(int rank, uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
  if (bytes == 0 || bytes % 16 != 0) report("sends " + std::to_string(bytes) + " bytes");
  const Stretch source = stretch_at(from, static_cast<int>(bytes / 4));
  Stretch there = stretch_at(to, source.count);
  const Place counter = place_of(barrier, 8);
  there.array = array_of_block(rank, there.array);
  begin_read(source, "copy");
  self().reading.push_back(source);
  std::vector<uint32_t> words;  // which nobody may change until they have been read
  for (int j = 0; j < source.count; ++j) words.push_back(source.array->words[source.word(j)].bits);
  begin_write(there, std::move(words),
              barrier_of_copy(array_of_block(rank, counter.array), counter.word));
}

void store_box(const void* p, uint32_t from, int column, int row) {
  const Map map = map_at(p);
  const Stretch box = box_at(map, from);
  begin_read(box, "copy");
  self().reading.push_back(box);
  self().writes = true;
  const int row_words = map.box_columns * map.element_bytes / 4;
  std::vector<uint32_t> words(row_words);
  for (int i = 0; i < map.box_rows; ++i) {
    const BoxRow to = box_row(map, column, row + i);
    if (to.bytes == 0) continue;
    for (int j = 0; j < row_words; ++j)
      words[j] = box.array->words[box.word(i * row_words + j)].bits;
    check_write(to.memory, to.bytes, 2);
    std::memcpy(to.memory, words.data(), to.bytes);
  }
}

void store_bytes(void* to, uint32_t from, uint32_t bytes) {
  if (bytes == 0 || bytes % 16 != 0) report("stores " + std::to_string(bytes) + " bytes");
  const Stretch source = stretch_at(from, static_cast<int>(bytes / 4));
  begin_read(source, "copy");
  self().reading.push_back(source);
  self().writes = true;
  check_write(to, static_cast<int>(bytes), 16);
  for (int j = 0; j < source.count; ++j)
    static_cast<uint32_t*>(to)[j] = source.array->words[source.word(j)].bits;
}

void await_writes() {
  await_reads(0);
  self().writes = false;
}
void check_written() {
  if (self().writes) report("a flag says that copies have written, which may not have");
}

void await_reads(int left) {
  std::deque<Stretch>& reading = self().reading;
  while (std::ssize(reading) > left) {
    end_read(reading.front(), self().known, current->running, self().position);
    reading.pop_front();
  }
}

// ---- global memory ----

void wait_until_equal(const uint64_t* p, uint64_t value) {
  check_read(p, 8, 8);
  wait_until("await_flag", [=] { return *p == value; });
}
void wait_until_least(const uint32_t* p, uint32_t value) {
  check_read(p, 4, 4);
  wait_until("await_count", [=] { return *p >= value; });
}

void wait_until_posted(uint32_t at, int32_t least) {
  wait_until("await_word", [=] { return posted_word(at) >= least; });
}

// ---- registers ----

void set_registers(const char* word, int registers, bool takes) {
  meet(State::kAtWave, {word, static_cast<uint64_t>(registers)});
  Wave& wave = own_wave();
  int& free = current->own_block().free_registers;
  if (takes ? registers < wave.registers : registers > wave.registers)
    report(std::string(word) + ": " + std::to_string(registers) + " where the wave has " +
           std::to_string(wave.registers));
  wait_until(word, [&] { return free >= (registers - wave.registers) * kWave; });
  free -= (registers - wave.registers) * kWave;
  wave.registers = registers;
}

// ---- matrix instructions ----

void open_products() { self().products_open = true; }

void close_products() {
  self().products_open = false;
  ++self().product_groups;
}

void multiply(float* sums, int count, uint32_t a, const uint32_t* registers, uint32_t b, bool add) {
  Fiber& fiber = self();
  Wave& wave = own_wave();
  if (!fiber.products_open) report("multiplies without open_products");
  const uint64_t at = fiber.products++ - wave.finished;
  if (at == wave.products.size()) {
    const int in_group = current->running / kWave % current->launch.waves % kGroupWaves;
    const Stretch rows = registers == nullptr ? operand(a, 16 * in_group) : Stretch{};
    wave.products.push_back({fiber.product_groups, 2 * count, add, rows, operand(b, 0), {a, b}});
    Product& begun = wave.products.back();
    for (int t = 0; t < begun.tokens; ++t)
      if (is_unwritten(row_of(begun.b, t))) begun.unwritten.set(t);
    for_each_row(begun, [](const Stretch& row) { begin_read(row, "product"); });
  }
  Product& product = wave.products[at];
  if (product.operands[0] != a || product.operands[1] != b || product.adds != add ||
      product.tokens != 2 * count || product.group != fiber.product_groups)
    report("multiplies other operands than another lane of its wave");
  Product::OfLane& own = product.lanes[current->running % kWave];
  own = {sums, registers, {}};
  if (registers != nullptr) std::memcpy(own.held.w, registers, sizeof(own.held.w));
}

void await_products(int groups) {
  Fiber& fiber = self();
  Wave& wave = own_wave();
  const uint64_t left = static_cast<uint64_t>(groups);
  const uint64_t over = fiber.product_groups - std::min(left, fiber.product_groups);
  const int group = current->running / kGroupLanes * kGroupLanes;
  wait_until("await_products", [=] {
    for (int lane = group; lane < group + kGroupLanes; ++lane)
      if (current->fibers[lane].product_groups < over) return false;
    return true;
  });
  for (const Product& product : wave.products) {
    const Product::OfLane& own = product.lanes[current->running % kWave];
    if (product.group < over && own.registers != nullptr &&
        std::memcmp(own.registers, own.held.w, sizeof(own.held.w)) != 0)
      report("registers of A have changed before the products were awaited");
  }
  if (++wave.at_await == kWave) {
    wave.at_await = 0;
    finish_products(over);
  }
  meet(State::kAtWave, {"await_products", left});
  fiber.known.add_lane(lane_of_products(current->running / kWave),
                       {0, static_cast<uint32_t>(wave.finished)});
}

void check_settled(const float* sums) {
  for (const Product& product : own_wave().products)
    if (product.lanes[current->running % kWave].sums == sums)
      report("settles sums whose products have not been awaited");
}

}  // namespace nf12::arch::host
