#include "csrc/arch/host/model.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <sstream>

#include "csrc/arch/host/cluster.hpp"
#include "csrc/arch/host/policy.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define NF12_FIBERS_UNDER_ASAN 1
#else
#define NF12_FIBERS_UNDER_ASAN 0
#endif

namespace nf12::arch::host {

thread_local Cluster* current = nullptr;

std::string name_of_lane(int lane) {
  std::ostringstream text;
  const auto lanes = static_cast<int>(current->fibers.size());
  if (lane >= lanes) return "a product of " + name_of_lane(lane - lanes);
  if (current->launch.cluster > 1)
    text << "block " << current->blocks[current->block_of(lane)].x << ", ";
  text << "wave " << lane % current->block_lanes() / kWave << ", lane " << lane % kWave;
  return text.str();
}

void report(const std::string& what) {
  std::ostringstream text;
  text << current->launch.kernel << ": block (";
  text << current->blocks[std::max(current->running, 0) / current->block_lanes()].x << ", "
       << current->y << ")";
  if (current->running >= 0)
    text << ", wave " << current->running % current->block_lanes() / kWave << ", lane "
         << current->running % kWave;
  text << ": " << what << " (seed " << current->launch.seed << ")";
  throw Report(text.str());
}

namespace {

constexpr size_t kStackBytes = 256 * 1024;

// Stacks outlive their block: fresh pages for every lane of every block would be most of the time.
char* stack_of(int lane) {
  thread_local std::vector<std::unique_ptr<char[]>> stacks;
  while (stacks.size() <= static_cast<size_t>(lane))
    stacks.push_back(std::make_unique_for_overwrite<char[]>(kStackBytes));
  return stacks[lane].get();
}

void to_scheduler([[maybe_unused]] bool for_good) {
#if NF12_FIBERS_UNDER_ASAN
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, current->scheduler_stack,
                                 current->scheduler_stack_bytes);
  swapcontext(&self().context, &current->scheduler);
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
  swapcontext(&self().context, &current->scheduler);
#endif
}

void open_cluster_meeting();

void end_lane() {
  check_end_of_lane();
  self().state = State::kDone;
  Block& block = current->own_block();
  block.at_end.join(self().known);
  open_cluster_meeting();  // a lane that is no more counts as one that arrived
  if (++block.done == current->block_lanes()) check_end_of_block(block);
}

void lane_main() {
#if NF12_FIBERS_UNDER_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &current->scheduler_stack,
                                  &current->scheduler_stack_bytes);
#endif
  try {
    current->kernel();
    end_lane();
  } catch (...) {
    current->failure = std::current_exception();
  }
  to_scheduler(true);
}

void resume(int lane) {
  Fiber& fiber = current->fibers[lane];
  current->running = lane;
#if NF12_FIBERS_UNDER_ASAN
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, fiber.stack, kStackBytes);
  swapcontext(&current->scheduler, &fiber.context);
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
  swapcontext(&current->scheduler, &fiber.context);
#endif
  if (current->failure) std::rethrow_exception(current->failure);
}

// What each of the lanes [first, last) did, all of them know of.
void order_memory(int first, int last) {
  Knowledge all = current->fibers[first].known;
  for (int i = first + 1; i < last; ++i)
    if (current->fibers[i].known != current->fibers[i - 1].known)  // most know the same
      all.join(current->fibers[i].known);
  for (int i = first; i < last; i += kWave)
    all.waves[i / kWave] = ++current->fibers[i].position.meetings;
  all.drop_old_lanes();
  for (int i = first; i < last; ++i) {
    Fiber& fiber = current->fibers[i];
    fiber.position = {all.waves[i / kWave], 0};
    fiber.known = all;
  }
}

// Lanes [first, last) stand at a meeting: let them go on, if they came to the same one.
void open_meeting(int first, int last) {
  const Fiber& leader = current->fibers[first];
  for (int i = first; i < last; ++i) {
    Fiber& fiber = current->fibers[i];
    current->running = i;
    if (fiber.state != leader.state || fiber.meeting.value != leader.meeting.value) {
      std::ostringstream text;
      const auto place = [](const Fiber& f) {
        return f.state == State::kDone ? "the end of the kernel" : f.meeting.word;
      };
      text << "at " << place(fiber) << " (" << fiber.meeting.value << ") while lane "
           << first % kWave << " of wave " << first / kWave << " is at " << place(leader) << " ("
           << leader.meeting.value << ")";
      report(text.str());
    }
  }
  if (leader.orders_memory) order_memory(first, last);
  for (int i = first; i < last; ++i) current->fibers[i].state = State::kReady;
  current->running = -1;
}

bool any(State state, int first, int last) {
  for (int i = first; i < last; ++i)
    if (current->fibers[i].state == state) return true;
  return false;
}

bool all(State state, int first, int last) {
  for (int i = first; i < last; ++i)
    if (current->fibers[i].state != state) return false;
  return true;
}

// Opens every meeting that all of its lanes came to.
void open_meetings() {
  const int lanes = std::ssize(current->fibers), of_block = current->block_lanes();
  for (Fiber& fiber : current->fibers)
    if (fiber.state == State::kWaiting && fiber.condition(fiber.condition_of))
      fiber.state = State::kReady;
  for (int first = 0; first < lanes; first += kWave)
    if (current->fibers[first].state == State::kAtLanes) {
      const int count = static_cast<int>(current->fibers[first].meeting.value >> 8);
      const int in_block = first % of_block;
      if (in_block % count == 0 && in_block + count <= of_block &&
          all(State::kAtLanes, first, first + count))
        open_meeting(first, first + count);
    }
  for (int first = 0; first < lanes; first += kWave)
    if (all(State::kAtWave, first, first + kWave)) open_meeting(first, first + kWave);
  for (int first = 0; first < lanes; first += of_block)
    if (all(State::kAtBlock, first, first + of_block)) {
      open_meeting(first, first + of_block);
      ++current->blocks[first / of_block].meetings;
    }
}

void open_cluster_meeting() {
  Cluster& cluster = *current;
  for (const Fiber& fiber : cluster.fibers)
    if (fiber.state != State::kDone && fiber.cluster_arrivals == cluster.cluster_meetings) return;
  ++cluster.cluster_meetings;
  for (Fiber& fiber : cluster.fibers)
    if (fiber.state == State::kAtCluster) fiber.state = State::kReady;
}

// One line for each wave and what it waits for.
std::string waiting_lanes() {
  std::set<std::string> seen;
  std::ostringstream text;
  for (int i = 0; i < std::ssize(current->fibers); ++i) {
    const Fiber& fiber = current->fibers[i];
    if (fiber.state == State::kDone) continue;
    std::ostringstream what;
    what << fiber.meeting.word;
    if (fiber.state == State::kAtBarrier) {
      const Barrier& barrier = *fiber.barrier;
      what << " for phase " << fiber.phase << " of " << barrier.array->name << "[" << barrier.word
           << "], which has " << barrier.arrivals - barrier.missing << " of " << barrier.arrivals
           << " arrivals of phase " << barrier.phase << " and wants " << barrier.bytes
           << " bytes more";
    }
    if (seen.insert(what.str() + "#" + std::to_string(i / kWave)).second)
      text << "; " << name_of_lane(i) << " at " << what.str();
  }
  return text.str();
}

// No lane can go on: some are at a meeting that others of theirs passed by, or all wait.
[[noreturn]] void report_standstill() {
  const int lanes = std::ssize(current->fibers), of_block = current->block_lanes();
  const auto waits = [](int first, int last) {
    return any(State::kAtBarrier, first, last) || any(State::kAtCluster, first, last) ||
           any(State::kAtLanes, first, last) || any(State::kWaiting, first, last);
  };
  for (int first = 0; first < lanes; first += kWave)
    if (any(State::kAtWave, first, first + kWave) && !waits(first, first + kWave))
      open_meeting(first, first + kWave);
  for (int first = 0; first < lanes; first += of_block)
    if (any(State::kAtBlock, first, first + of_block) && !waits(first, first + of_block))
      open_meeting(first, first + of_block);
  current->running = -1;
  report("deadlock" + waiting_lanes());
}

void start_fibers(Cluster& cluster) {
  const int waves = cluster.launch.cluster * cluster.launch.waves;
  cluster.fibers.resize(waves * kWave);
  // What a kernel may have that is compiled for so many lanes.
  cluster.waves.resize(waves, {.registers = std::min(65536 / cluster.block_lanes() / 8 * 8, 256)});
  cluster.uniform.resize(waves);
  for (auto& words : cluster.exchanged) words.resize(waves * kWave);
  for (int i = 0; i < waves * kWave; ++i) {
    Fiber& fiber = cluster.fibers[i];
    fiber.known.waves.resize(waves);
    fiber.stack = stack_of(i);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, lane_main, 0);
#if NF12_FIBERS_UNDER_ASAN
    // Once, and not at every switch, as ASan would do for a context that names its stack.
    __asan_unpoison_memory_region(fiber.stack, kStackBytes);
    fiber.context.uc_stack.ss_size = 0;
#endif
  }
}

// Some waves are slower than others, copies and sent words slower still.
void run_cluster(Cluster& cluster) {
  current = &cluster;
  start_fibers(cluster);
  const int lanes = std::ssize(cluster.fibers);
  std::vector<int> ready;
  std::vector<unsigned> pace;  // rounds that a wave joins in, of eight
  for (int i = 0; i < lanes; i += kWave) pace.push_back(2 + cluster.random() % 7);
  while (!all(State::kDone, 0, lanes)) {
    open_meetings();
    deliver(4);
    ready.clear();
    bool anything = false;
    for (int first = 0; first < lanes; first += kWave) {
      if (!any(State::kReady, first, first + kWave)) continue;
      anything = true;
      if (cluster.random() % 8 >= pace[first / kWave]) continue;
      for (int i = first; i < first + kWave; ++i)
        if (cluster.fibers[i].state == State::kReady) ready.push_back(i);
    }
    if (!anything && !deliver(1)) report_standstill();
    std::shuffle(ready.begin(), ready.end(), cluster.random);
    for (const int lane : ready) resume(lane);
  }
  while (deliver(1)) {
  }
  for (int i = 0; i < lanes; ++i) {
    cluster.running = i;
    if (cluster.fibers[i].uniform_words != cluster.uniform[i / kWave].size())
      report("passed fewer uniform words than another lane of its wave");
  }
}

// Index of the buffer that holds [p, p + bytes), else a report.
size_t buffer_of(const void* p, int bytes, int alignment, const char* access) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  if (at % alignment != 0) {
    std::ostringstream text;
    text << access << " of " << bytes << " bytes at " << p << " is not aligned to " << alignment;
    report(text.str());
  }
  for (size_t i = 0; i < current->launch.buffers.size(); ++i) {
    const Buffer& buffer = current->launch.buffers[i];
    const auto begin = reinterpret_cast<uintptr_t>(buffer.begin);
    if (at >= begin && at + bytes <= begin + buffer.bytes) return i;
  }
  std::ostringstream text;
  text << access << " of " << bytes << " bytes at " << p << " is outside every buffer";
  for (const Buffer& buffer : current->launch.buffers) {
    const auto offset = static_cast<int64_t>(at - reinterpret_cast<uintptr_t>(buffer.begin));
    if (offset > -4096 && offset < static_cast<int64_t>(buffer.bytes) + 4096)
      text << ", byte " << offset << " of " << buffer.name << "'s " << buffer.bytes;
  }
  report(text.str());
}

// Of the current lane at its wave's next meeting.
uint64_t bring(uint32_t value) {
  Fiber& fiber = self();
  const uint64_t parity = fiber.meetings++ % 2;
  fiber.deposits[parity] = value;
  return parity;
}

}  // namespace

void meet(State state, Passed meeting, bool orders_memory) {
  self().meeting = meeting;
  self().orders_memory = orders_memory;
  self().state = state;
  to_scheduler(false);
}

void check_read(const void* p, int bytes, int alignment) { buffer_of(p, bytes, alignment, "read"); }

void check_write(const void* p, int bytes, int alignment) {
  const size_t i = buffer_of(p, bytes, alignment, "write");
  const Buffer& buffer = current->launch.buffers[i];
  if (!buffer.writable) report("write to " + buffer.name + ", which is read-only");
  const size_t offset = static_cast<const char*>(p) - static_cast<const char*>(buffer.begin);
  for (size_t byte = offset; byte < offset + bytes; ++byte) {
    if (current->written[i][byte])
      report("second write to byte " + std::to_string(byte) + " of " + buffer.name);
    current->written[i][byte] = 1;
  }
}

void check_atomic(const void* p, int bytes) {
  const Buffer& buffer = current->launch.buffers[buffer_of(p, bytes, bytes, "atomic")];
  if (!buffer.writable) report("atomic on " + buffer.name + ", which is read-only");
}

void check_slot(int slot, int count) {
  if (slot < 0 || slot >= count)
    report("register " + std::to_string(slot) + " of " + std::to_string(count));
}

void check_shared_alignment(int word, int count) {
  if (word % count != 0)
    report("shared word " + std::to_string(word) + " is not aligned to " + std::to_string(count));
}

const Words<8>* exchange(const char* word, const Words<8>& own) {
  std::vector<Words<8>>& words = current->exchanged[self().exchanges++ % 2];
  words[current->running] = own;
  meet(State::kAtWave, {word, self().exchanges});
  return &words[current->running / kWave * kWave];
}

void check_uniform(const char* word, uint64_t value) {
  std::vector<Passed>& passed = current->uniform[current->running / kWave];
  const size_t i = self().uniform_words++;
  if (i == passed.size()) {
    passed.push_back({word, value});
    return;
  }
  if (passed[i].value == value && std::strcmp(passed[i].word, word) == 0) return;
  std::ostringstream text;
  text << "passes " << value << " to " << word << " where another lane of its wave passed "
       << passed[i].value << " to " << passed[i].word;
  report(text.str());
}

uint32_t meet_wave(const char* word, uint64_t common, uint32_t value, int from) {
  const uint64_t parity = bring(value);
  meet(State::kAtWave, {word, common});
  return current->fibers[current->running / kWave * kWave + from].deposits[parity];
}

uint32_t meet_wave_ballot(bool condition) {
  const uint64_t parity = bring(condition);
  meet(State::kAtWave, {"ballot", 0});
  const int first = current->running / kWave * kWave;
  uint32_t bits = 0;
  for (int i = 0; i < kWave; ++i) bits |= current->fibers[first + i].deposits[parity] << i;
  return bits;
}

void run(const Launch& launch, const std::function<void()>& kernel) {
  if (launch.cluster < 1 || launch.grid_x % launch.cluster != 0)
    throw Report(launch.kernel + ": a grid of " + std::to_string(launch.grid_x) +
                 " blocks in clusters of " + std::to_string(launch.cluster));
  std::mt19937_64 random(launch.seed);
  std::vector<std::vector<uint8_t>> written;
  for (const Buffer& buffer : launch.buffers)
    written.emplace_back(buffer.writable ? buffer.bytes : 0);
  for (int y = 0; y < launch.grid_y; ++y)
    for (int x = 0; x < launch.grid_x; x += launch.cluster) {
      Cluster cluster{launch, kernel, random, y, written};
      for (int i = 0; i < launch.cluster; ++i) cluster.blocks.push_back({.x = x + i});
      run_cluster(cluster);
    }
}

}  // namespace nf12::arch::host

namespace nf12::arch {

int lane() { return host::current->running % kWave; }

int wave() {
  const int wave = host::current->running % host::current->block_lanes() / kWave;
  host::check_uniform("wave", static_cast<uint64_t>(wave));
  return wave;
}

int block_x() { return host::current->own_block().x; }
int block_y() { return host::current->y; }
int cluster_rank() { return host::current->block_of(host::current->running); }

void sync_block() {
  host::meet(host::State::kAtBlock, {"sync_block", host::current->own_block().meetings}, true);
}

uint32_t broadcast(uint32_t value, int from) {
  return host::meet_wave("broadcast", static_cast<uint64_t>(from), value, from);
}

void sync_wave() {
  host::meet(host::State::kAtWave, {"sync_wave", host::self().position.meetings}, true);
}

void signal_block() {
  if (host::self().signalled) host::report("signals twice");
  host::self().signalled = true;
}

void wait_block() {
  if (!host::self().signalled) host::report("waits without a signal");
  host::meet(host::State::kAtBlock, {"wait_block", host::current->own_block().meetings}, true);
  host::self().signalled = false;
}

void arrive_cluster() {
  host::Fiber& fiber = host::self();
  host::check_uniform("arrive_cluster", fiber.cluster_arrivals);
  if (fiber.cluster_arrivals != fiber.cluster_waits)
    host::report("arrives at the cluster's meeting twice");
  // A relaxed arrival: it brings the barriers that its lane opened, and nothing else.
  for (const int barrier : fiber.opened) {
    host::current->opened.raise_barrier(barrier, 0);
    host::current->barriers[barrier].shown = true;
  }
  ++fiber.cluster_arrivals;
  host::open_cluster_meeting();
}

void wait_cluster() {
  host::Fiber& fiber = host::self();
  host::check_uniform("wait_cluster", fiber.cluster_waits);
  if (fiber.cluster_arrivals == fiber.cluster_waits)
    host::report("waits for the cluster without having arrived");
  ++fiber.cluster_waits;
  if (host::current->cluster_meetings < fiber.cluster_waits)
    host::meet(host::State::kAtCluster, {"wait_cluster", fiber.cluster_waits});
  fiber.known.join(host::current->opened);
}

}  // namespace nf12::arch
