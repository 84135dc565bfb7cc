// Shared memory in the host model: accesses and their order, copies on their way, barriers that
// count, words sent from block to block.
#include <algorithm>
#include <sstream>

#include "csrc/arch/host/cluster.hpp"
#include "csrc/arch/host/policy.hpp"

namespace nf12::arch::host {

std::string name_of_word(const SharedArray* array, int i) {
  return "shared " + array->name + "[" + std::to_string(i) + "]";
}

namespace {

SharedWord& shared_word(SharedArray* array, int i, const char* access) {
  if (self().signalled)
    report(std::string(access) + " of shared " + array->name + " between signal and wait");
  if (i < 0 || i >= std::ssize(array->words))
    report(std::string(access) + " of " + name_of_word(array, i) + ", which has " +
           std::to_string(array->words.size()) + " words");
  if (array->words[i].in_barrier)
    report(std::string(access) + " of " + name_of_word(array, i) + ", which is part of a barrier");
  if (array->words[i].posted)
    report(std::string(access) + " of " + name_of_word(array, i) + ", which is posted");
  return array->words[i];
}

[[noreturn]] void report_race(const SharedArray* array, int i, const char* access,
                              const std::string& other) {
  report(std::string(access) + " of " + name_of_word(array, i) + ", which " + other +
         " with no barrier in between");
}

// Reports an access with which the present lane is not ordered after the word's last write.
void check_write_known(const SharedArray* array, int i, const char* access) {
  const SharedWord& word = array->words[i];
  if (word.in_flight)
    report(std::string(access) + " of " + name_of_word(array, i) +
           ", to which a copy is on its way");
  const Write& write = word.write;
  const Knowledge& known = self().known;
  if (write.barrier >= 0 && known.is_over(write.barrier, write.phase)) return;
  if (write.barrier >= 0 && write.by.is_none()) report_race(array, i, access, "a copy wrote");
  const int lane = write.by.unknown_lane(known, current->running);
  if (lane >= 0) report_race(array, i, access, name_of_lane(lane) + " wrote");
}

void check_known(const SharedArray* array, int i, const char* access, const Accesses& accesses,
                 const char* did) {
  const int lane = accesses.unknown_lane(self().known, current->running);
  if (lane >= 0) report_race(array, i, access, name_of_lane(lane) + " " + did);
}

void check_no_read_pending(const SharedArray* array, int i, const char* access) {
  if (array->words[i].pending > 0)
    report(std::string(access) + " of " + name_of_word(array, i) +
           ", which copies or matrix instructions read that have not been awaited");
}

void hide(SharedWord& word, bool others_too) {
  const int wave = current->running / kWave;
  const uint32_t bit = 1u << current->running % kWave;
  if (word.hidden_wave != wave || (word.hidden_lanes & bit) == 0) self().hidden.push_back(&word);
  word.hidden_lanes = others_too && word.hidden_wave == wave ? word.hidden_lanes | bit : bit;
  word.hidden_wave = wave;
}

// A write needs the word for itself.
SharedWord& word_to_overwrite(SharedArray* array, int i, const char* access) {
  SharedWord& word = shared_word(array, i, access);
  check_no_read_pending(array, i, access);
  check_write_known(array, i, access);
  check_known(array, i, access, word.reads, "read");
  check_known(array, i, access, word.adds, "added to");
  word.reads.clear();
  word.adds.clear();
  word.shown = {};
  return word;
}

SharedWord& word_to_change(SharedArray* array, int i, const char* access) {
  SharedWord& word = shared_word(array, i, access);
  if (!word.written)
    report(std::string(access) + " of " + name_of_word(array, i) + ", which nobody wrote");
  check_no_read_pending(array, i, access);
  check_write_known(array, i, access);
  check_known(array, i, access, word.reads, "read");
  hide(word, true);
  word.adds.note(self().known, current->running, self().position);
  return word;
}

// Reports a word that a copy or a matrix instruction would not see as lanes wrote it.
void check_shown(const SharedArray* array, int i, const char* access) {
  const SharedWord& word = array->words[i];
  for (int lane = 0; lane < kWave; ++lane)
    if (word.hidden_lanes >> lane & 1)
      report(std::string(access) + " of " + name_of_word(array, i) + ", which " +
             name_of_lane(word.hidden_wave * kWave + lane) +
             " wrote and has not shown to copies since");
  const int lane = word.shown.unknown_lane(self().known, current->running);
  if (lane >= 0) report_race(array, i, access, name_of_lane(lane) + " showed to copies");
}

}  // namespace

// ---- barriers ----

// `array` may be another block's. Reports a barrier that the present lane has not seen open.
Barrier& barrier_at(SharedArray* array, int i, const char* use) {
  const auto found = array->barriers.find(i);
  if (found == array->barriers.end() || !self().known.is_open(found->second->id))
    report(std::string(use) + " the barrier at " + name_of_word(array, i) +
           ", which the lane has not seen open");
  return *found->second;
}

namespace {

void end_phase_if_complete(Barrier& barrier) {
  if (barrier.missing == 0 && barrier.bytes < 0)
    report("more bytes came than the barrier at " + name_of_word(barrier.array, barrier.word) +
           " expects");
  if (barrier.missing > 0 || barrier.bytes > 0) return;
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
  barrier.over.join(barrier.brought);
  barrier.brought = {};
  for (const int lane : barrier.waiting) current->fibers[lane].state = State::kReady;
  barrier.waiting.clear();
}

void count_arrival(Barrier& barrier) {
  if (--barrier.missing < 0)
    report("arrives at the barrier at " + name_of_word(barrier.array, barrier.word) +
           ", which has all its arrivals and waits for bytes");
  end_phase_if_complete(barrier);
}

// ---- arrivals from afar ----

void land(const SharedArray* array, int i, uint32_t bits, const Write& write) {
  SharedWord& word = const_cast<SharedArray*>(array)->words[i];
  word.bits = bits;
  word.written = true;
  word.in_flight = false;
  word.hidden_lanes = 0;
  word.shown = {};
  word.write = write;
}

void land_copy(Fiber& fiber, const Write& write) {
  const Copy& copy = fiber.copies.front();
  for (int j = 0; j < 4; ++j) {
    land(copy.array, copy.i + j, copy.words.w[j], write);
    hide(copy.array->words[copy.i + j], false);
  }
  fiber.copies.pop_front();
  ++fiber.landed;
}

// The first of the lane's arrivals with copies, and the copies before it. `awaiting`: by a lane
// that waits for its copies.
void land_arrival(int lane, bool awaiting) {
  Fiber& fiber = current->fibers[lane];
  const Arrival arrival = fiber.arrivals.front();
  fiber.arrivals.pop_front();
  Write write = {{}, arrival.barrier->id, arrival.barrier->phase};
  if (awaiting) write.by.note(lane, fiber.position);
  while (fiber.landed < arrival.copies) land_copy(fiber, write);
  count_arrival(*arrival.barrier);
}

void land_sent(const Sent& sent) {
  current->running = sent.from;
  Barrier& barrier = *sent.barrier;
  const SharedArray* array = sent.to.array;
  if (array->block->done == current->block_lanes())
    report("sends to " + name_of_word(array, sent.to.i) + " of block " +
           std::to_string(array->block->x) + ", which has ended");
  barrier.bytes -= 4 * std::ssize(sent.words);
  if (barrier.bytes < 0 && !(sent.early && barrier.missing > 0))
    report("sends more bytes than the barrier at " + name_of_word(barrier.array, barrier.word) +
           " of block " + std::to_string(array->block->x) + " expects");
  for (int j = 0; j < sent.to.count; ++j)
    land(array, sent.to.word(j), sent.words[j], {{}, barrier.id, barrier.phase});
  barrier.last_fed = barrier.phase;
  end_phase_if_complete(barrier);
}

}  // namespace

bool deliver(int one_in) {
  bool any = false;
  for (int lane = 0; lane < std::ssize(current->fibers); ++lane)
    if (!current->fibers[lane].arrivals.empty() && current->random() % one_in == 0) {
      current->running = lane;
      land_arrival(lane, false);
      any = true;
    }
  auto& sent = current->sent;
  for (size_t i = 0; i < sent.size();) {
    if (current->random() % one_in != 0) {
      ++i;
      continue;
    }
    land_sent(sent[i]);
    sent[i] = std::move(sent.back());
    sent.pop_back();
    any = true;
  }
  current->running = -1;
  return any;
}

void check_end_of_block(Block& block) {
  const int first = current->block_of(current->running) * current->block_lanes();
  for (int lane = first; lane < first + current->block_lanes(); ++lane)
    if (!current->fibers[lane].copies.empty()) {
      current->running = lane;
      report("ends with copies on their way");
    }
  check_registers_at_end(first);
  for (const Barrier& barrier : current->barriers)
    if (barrier.array->block == &block && barrier.last_fed >= 0 &&
        !block.at_end.is_over(barrier.id, barrier.last_fed))
      report("ends without having waited for what was sent to it, phase " +
             std::to_string(barrier.last_fed) + " of the barrier at " +
             name_of_word(barrier.array, barrier.word));
}

SharedArray* shared_array(const char* name, int count) {
  Block& block = current->own_block();
  SharedArray& array = block.shared[name];
  if (array.words.empty()) {
    array.name = name;
    array.block = &block;
    array.address = (block.shared_end + 1023) / 1024 * 1024;
    block.shared_end = array.address + 4 * count;
    array.words.resize(count);
  }
  return &array;
}

uint32_t shared_peek(SharedArray* array, int i) {
  const SharedWord& word = shared_word(array, i, "read");
  return word.written || word.in_flight ? shared_load(array, i) : 0xDEADBEEF;
}

uint32_t shared_load(SharedArray* array, int i) {
  SharedWord& word = shared_word(array, i, "read");
  if (!word.written)
    report("read of " + name_of_word(array, i) + ", which nobody wrote" +
           (word.in_flight ? ": a copy is on its way" : ""));
  check_write_known(array, i, "read");
  check_known(array, i, "read", word.adds, "added to");
  word.reads.note(self().known, current->running, self().position);
  return word.bits;
}

void shared_post(SharedArray* array, int i, uint32_t bits) {
  SharedWord& word = array->words.at(i);
  if (!word.posted) shared_word(array, i, "post");
  word.posted = true;
  word.bits = bits;
}

uint32_t shared_posted(SharedArray* array, int i) {
  const SharedWord& word = array->words.at(i);
  if (!word.posted) report("watches " + name_of_word(array, i) + ", which nobody posted");
  return word.bits;
}

void shared_store(SharedArray* array, int i, uint32_t bits) {
  SharedWord& word = word_to_overwrite(array, i, "write");
  word.bits = bits;
  word.written = true;
  word.write = {};
  word.write.by.note(current->running, self().position);
  hide(word, false);
}

void shared_add(SharedArray* array, int i, uint32_t value) {
  word_to_change(array, i, "add").bits += value;
}

void shared_store_half(SharedArray* array, int half, uint16_t value) {
  uint32_t& bits = word_to_change(array, half / 2, "write of half").bits;
  const int shift = half % 2 * 16;
  bits = (bits & ~(0xFFFFu << shift)) | uint32_t{value} << shift;
}

void shared_copy(SharedArray* array, int i, const Words<4>& words) {
  for (int j = 0; j < 4; ++j) word_to_overwrite(array, i + j, "copy").in_flight = true;
  self().copies.push_back({array, i, words, self().closed});
}

void close_copies() { ++self().closed; }

void await_copies(uint64_t groups, bool and_open) {
  Fiber& fiber = self();
  const uint64_t last = and_open ? UINT64_MAX : fiber.closed - std::min(groups, fiber.closed);
  Write own;
  own.by.note(current->running, fiber.position);
  while (!fiber.copies.empty() && fiber.copies.front().group < last) {
    if (!fiber.arrivals.empty() && fiber.arrivals.front().copies > fiber.landed)
      land_arrival(current->running, true);
    else
      land_copy(fiber, own);
  }
}

void open_barrier(SharedArray* array, int i, int arrivals) {
  check_shared_alignment(i, 2);
  if (array->barriers.contains(i))
    report("opens the barrier at " + name_of_word(array, i) + " twice");
  if (arrivals < 1) report("opens a barrier of " + std::to_string(arrivals) + " arrivals");
  for (int j = 0; j < 2; ++j) word_to_overwrite(array, i + j, "opening").in_barrier = true;
  const int id = std::ssize(current->barriers);
  array->barriers[i] = &current->barriers.emplace_back(Barrier{
      .id = id, .array = array, .word = i, .arrivals = arrivals, .missing = arrivals, .bytes = 0});
  self().known.raise_barrier(id, 0);
  self().opened.push_back(id);
}

void arrive_barrier(SharedArray* array, int i) {
  Barrier& barrier = barrier_at(array, i, "arrives at");
  Fiber& fiber = self();
  ++fiber.position.arrivals;
  barrier.brought.join(fiber.known);
  barrier.brought.add_lane(current->running, fiber.position);
  count_arrival(barrier);
}

void arrive_barrier_with_copies(SharedArray* array, int i) {
  Barrier& barrier = barrier_at(array, i, "arrives at");
  self().arrivals.push_back({&barrier, self().landed + self().copies.size()});
}

void expect_bytes(SharedArray* array, int i, int bytes) {
  if (bytes < 0 || bytes >= 1 << 20) report("expects " + std::to_string(bytes) + " bytes");
  barrier_at(array, i, "expects bytes of").bytes += bytes;
  arrive_barrier(array, i);
}

namespace {

// Of what a lane asks about the phase.
void check_phase(const Barrier& barrier, int phase, bool is_past) {
  const bool is_wrong = is_past ? phase + 1 < barrier.phase : phase > barrier.phase;
  if (!is_wrong) return;
  std::ostringstream text;
  text << "waits for phase " << phase << " of the barrier at "
       << name_of_word(barrier.array, barrier.word) << ", which is "
       << (is_past ? "already in" : "only in") << " phase " << barrier.phase
       << ": a barrier tells only odd phases from even ones";
  report(text.str());
}

void know_phase(const Barrier& barrier, int phase) {
  check_phase(barrier, phase, true);
  self().known.join(barrier.over);
  self().known.raise_barrier(barrier.id, phase + 1);
}

}  // namespace

void wait_barrier(SharedArray* array, int i, int phase) {
  Barrier& barrier = barrier_at(array, i, "waits at");
  check_phase(barrier, phase, false);
  Fiber& fiber = self();
  if (phase == barrier.phase) {
    fiber.barrier = &barrier;
    fiber.phase = phase;
    barrier.waiting.push_back(current->running);
    meet(State::kAtBarrier, {"wait_barrier", static_cast<uint64_t>(phase)});
  }
  know_phase(barrier, phase);
}

bool is_over(SharedArray* array, int i, int phase) {
  const Barrier& barrier = barrier_at(array, i, "asks");
  check_phase(barrier, phase, false);
  if (phase == barrier.phase) return false;
  know_phase(barrier, phase);
  return true;
}

// The same array of another block of the cluster.
SharedArray* array_of_block(int rank, const SharedArray* own) {
  if (rank < 0 || rank >= current->launch.cluster)
    report("sends to block " + std::to_string(rank) + " of a cluster of " +
           std::to_string(current->launch.cluster));
  Block& block = current->blocks[rank];
  if (&block != &current->own_block() && self().cluster_waits == 0)
    report("sends to block " + std::to_string(rank) +
           " of its cluster, which has not been shown to run");
  if (block.done == current->block_lanes())
    report("sends to block " + std::to_string(rank) + " of its cluster, which has ended");
  const auto found = block.shared.find(own->name);
  if (found == block.shared.end())
    report("sends to shared " + own->name + " of block " + std::to_string(rank) +
           ", which has none");
  return &found->second;
}

void begin_read(const Stretch& from, const char* access) {
  for (int j = 0; j < from.count; ++j) {
    const int i = from.word(j);
    SharedWord& word = shared_word(from.array, i, access);
    if (!word.written && !word.in_flight)
      report(std::string(access) + " of " + name_of_word(from.array, i) + ", which nobody wrote");
    check_write_known(from.array, i, access);
    check_known(from.array, i, access, word.adds, "added to");
    check_shown(from.array, i, access);
    ++word.pending;
  }
}

void end_read(const Stretch& from, const Knowledge& known, int lane, Position position) {
  for (int j = 0; j < from.count; ++j) {
    SharedWord& word = from.array->words[from.word(j)];
    --word.pending;
    word.reads.note(known, lane, position);
  }
}

void begin_write(const Stretch& to, std::vector<uint32_t> words, Barrier& barrier, bool early) {
  for (int j = 0; j < to.count; ++j) {
    const int i = to.word(j);
    if (i < std::ssize(to.array->words)) check_shown(to.array, i, "copy");
    word_to_overwrite(to.array, i, "copy").in_flight = true;
  }
  current->sent.push_back({current->running, to, std::move(words), &barrier, early});
}

void send_shared(int rank, SharedArray* array, int i, int barrier, const Words<2>& words) {
  check_shared_alignment(i, 2);
  const Stretch to = {array_of_block(rank, array), i, 2};
  Barrier& counts = barrier_at(to.array, barrier, "sends to");
  for (int j = 0; j < 2; ++j) word_to_overwrite(to.array, i + j, "sent write").in_flight = true;
  current->sent.push_back({current->running, to, {words.w[0], words.w[1]}, &counts});
}

}  // namespace nf12::arch::host

namespace nf12::arch {

void await_copies() { host::await_copies(0, true); }

}  // namespace nf12::arch
