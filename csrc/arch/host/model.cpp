#include "csrc/arch/host/model.hpp"

#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <sstream>

#include "csrc/arch/host/policy.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define NF12_FIBERS_UNDER_ASAN 1
#else
#define NF12_FIBERS_UNDER_ASAN 0
#endif

namespace nf12::arch::host {

// The last access of one kind to a word: by whom, -1 for nobody, in which epoch of the block, after
// how many sync_wave of the lane's wave.
struct Access {
  int lane = -1;
  int epoch = -1;
  uint64_t syncs = 0;
  bool several_lanes = false, several_waves = false;  // since the last barrier
};

// One word of shared memory.
struct SharedWord {
  uint32_t bits = 0;
  Access write, read;
  Access add;  // atomic, or of a half: these do not race with each other
};

struct SharedArray {
  std::string name;
  std::vector<SharedWord> words;
};

namespace {

constexpr size_t kStackBytes = 256 * 1024;

enum class State { kReady, kAtWave, kAtBlock, kDone };

// What a lane passed to a uniform word or brought to a meeting.
struct Passed {
  const char* word;
  uint64_t value;
};

// Of 16 bytes to shared memory.
struct Copy {
  SharedArray* array;
  int i;
  Words<4> words;
};

struct Fiber {
  ucontext_t context;
  char* stack = nullptr;
  State state = State::kReady;
  Passed meeting = {"", 0};
  size_t uniform_words = 0;   // how many uniform words this lane has passed
  uint64_t meetings = 0;      // of the wave so far
  uint32_t deposits[2] = {};  // the last two values brought to a meeting: a lane may be one ahead
  uint64_t exchanges = 0;     // likewise for exchange
  bool signalled = false;     // between signal_block and wait_block
  uint64_t syncs = 0;         // sync_wave so far
  std::vector<Copy> copies = {};  // on their way
};

struct Block {
  const Launch& launch;
  const std::function<void()>& kernel;
  std::mt19937_64& random;
  int x, y;
  std::vector<std::vector<uint8_t>>& written;  // per buffer and byte, over all blocks
  std::vector<Fiber> fibers = {};
  std::vector<std::vector<Passed>> uniform = {};  // per wave, as its first lane passed them
  std::vector<Words<8>> exchanged[2] = {};        // per lane, for exchange
  std::map<std::string, SharedArray> shared = {};
  ucontext_t scheduler = {};
  int running = -1;
  int epoch = 0;
  std::exception_ptr failure = {};
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
};

thread_local Block* current = nullptr;

// Stacks outlive their block: fresh pages for every lane of every block would be most of the time.
char* stack_of(int lane) {
  thread_local std::vector<std::unique_ptr<char[]>> stacks;
  while (stacks.size() <= static_cast<size_t>(lane))
    stacks.push_back(std::make_unique_for_overwrite<char[]>(kStackBytes));
  return stacks[lane].get();
}

[[noreturn]] void report(const std::string& what) {
  std::ostringstream text;
  text << current->launch.kernel << ": block (" << current->x << ", " << current->y << ")";
  if (current->running >= 0)
    text << ", wave " << current->running / kWave << ", lane " << current->running % kWave;
  text << ": " << what << " (seed " << current->launch.seed << ")";
  throw Report(text.str());
}

Fiber& self() { return current->fibers[current->running]; }

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

void lane_main() {
#if NF12_FIBERS_UNDER_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &current->scheduler_stack,
                                  &current->scheduler_stack_bytes);
#endif
  try {
    current->kernel();
  } catch (...) {
    current->failure = std::current_exception();
  }
  self().state = State::kDone;
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

void meet(State state, Passed meeting) {
  self().meeting = meeting;
  self().state = state;
  to_scheduler(false);
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
  for (int i = first; i < last; ++i) current->fibers[i].state = State::kReady;
}

bool any(State state, int first, int last) {
  for (int i = first; i < last; ++i)
    if (current->fibers[i].state == state) return true;
  return false;
}

void run_block(Block& block) {
  current = &block;
  const int lanes = block.launch.waves * kWave;
  block.fibers.resize(lanes);
  block.uniform.resize(block.launch.waves);
  for (auto& words : block.exchanged) words.resize(lanes);
  for (int i = 0; i < lanes; ++i) {
    Fiber& fiber = block.fibers[i];
    fiber.stack = stack_of(i);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, lane_main, 0);
  }
  std::vector<int> ready;
  for (;;) {
    ready.clear();
    for (int i = 0; i < lanes; ++i)
      if (block.fibers[i].state == State::kReady) ready.push_back(i);
    if (ready.empty()) {
      bool opened = false;
      for (int wave = 0; wave < block.launch.waves; ++wave)
        if (any(State::kAtWave, wave * kWave, (wave + 1) * kWave)) {
          open_meeting(wave * kWave, (wave + 1) * kWave);
          opened = true;
        }
      if (opened) continue;
      if (!any(State::kAtBlock, 0, lanes)) break;
      open_meeting(0, lanes);
      ++block.epoch;
      continue;
    }
    std::shuffle(ready.begin(), ready.end(), block.random);
    for (const int lane : ready) resume(lane);
  }
  for (int i = 0; i < lanes; ++i) {
    block.running = i;
    if (block.fibers[i].uniform_words != block.uniform[i / kWave].size())
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

SharedWord& shared_word(SharedArray* array, int i, const char* access) {
  if (self().signalled)
    report(std::string(access) + " of shared " + array->name + " between signal and wait");
  if (i < 0 || i >= static_cast<int>(array->words.size())) {
    std::ostringstream text;
    text << access << " of shared " << array->name << "[" << i << "], which has "
         << array->words.size() << " words";
    report(text.str());
  }
  return array->words[i];
}

[[noreturn]] void report_race(const SharedArray* array, int i, const char* access,
                              const char* other, int lane) {
  std::ostringstream text;
  text << access << " of shared " << array->name << "[" << i << "], which wave " << lane / kWave
       << ", lane " << lane % kWave << " " << other << " with no barrier in between";
  report(text.str());
}

// Whether an access by another lane is ordered before the current lane by no barrier.
bool races(const Access& access) {
  if (access.epoch != current->epoch) return false;
  if (access.several_waves || access.lane / kWave != current->running / kWave) return true;
  const bool by_others = access.several_lanes || access.lane != current->running;
  return by_others && access.syncs == self().syncs;
}

void note(Access& access) {
  const bool fresh = access.epoch != current->epoch;
  const bool other_wave = access.lane / kWave != current->running / kWave;
  access.several_waves = !fresh && (access.several_waves || other_wave);
  access.several_lanes = !fresh && access.syncs == self().syncs &&
                         (access.several_lanes || access.lane != current->running);
  access.lane = current->running;
  access.epoch = current->epoch;
  access.syncs = self().syncs;
}

// Of the current lane at its wave's next meeting.
uint64_t bring(uint32_t value) {
  Fiber& fiber = self();
  const uint64_t parity = fiber.meetings++ % 2;
  fiber.deposits[parity] = value;
  return parity;
}

}  // namespace

SharedArray* shared_array(const char* name, int count) {
  SharedArray& array = current->shared[name];
  if (array.words.empty()) {
    array.name = name;
    array.words.resize(count);
  }
  return &array;
}

uint32_t shared_load(SharedArray* array, int i) {
  SharedWord& word = shared_word(array, i, "read");
  if (word.write.lane < 0) {
    std::ostringstream text;
    text << "read of shared " << array->name << "[" << i << "], which nobody wrote";
    report(text.str());
  }
  if (races(word.write)) report_race(array, i, "read", "wrote", word.write.lane);
  if (races(word.add)) report_race(array, i, "read", "added to", word.add.lane);
  note(word.read);
  return word.bits;
}

void shared_store(SharedArray* array, int i, uint32_t bits) {
  SharedWord& word = shared_word(array, i, "write");
  if (races(word.write)) report_race(array, i, "write", "wrote", word.write.lane);
  if (races(word.read)) report_race(array, i, "write", "read", word.read.lane);
  if (races(word.add)) report_race(array, i, "write", "added to", word.add.lane);
  word.bits = bits;
  note(word.write);
}

namespace {

SharedWord& word_to_change(SharedArray* array, int i, const char* access) {
  SharedWord& word = shared_word(array, i, access);
  if (word.write.lane < 0)
    report(std::string(access) + " of shared " + array->name + "[" + std::to_string(i) +
           "], which nobody wrote");
  if (races(word.write)) report_race(array, i, access, "wrote", word.write.lane);
  if (races(word.read)) report_race(array, i, access, "read", word.read.lane);
  note(word.add);
  return word;
}

}  // namespace

void shared_add(SharedArray* array, int i, uint32_t value) {
  word_to_change(array, i, "add").bits += value;
}

void shared_store_half(SharedArray* array, int half, uint16_t value) {
  uint32_t& bits = word_to_change(array, half / 2, "write of half").bits;
  const int shift = half % 2 * 16;
  bits = (bits & ~(0xFFFFu << shift)) | uint32_t{value} << shift;
}

void shared_copy(SharedArray* array, int i, const Words<4>& words) {
  self().copies.push_back({array, i, words});
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
  std::mt19937_64 random(launch.seed);
  std::vector<std::vector<uint8_t>> written;
  for (const Buffer& buffer : launch.buffers)
    written.emplace_back(buffer.writable ? buffer.bytes : 0);
  for (int y = 0; y < launch.grid_y; ++y)
    for (int x = 0; x < launch.grid_x; ++x) {
      Block block{launch, kernel, random, x, y, written};
      run_block(block);
    }
}

}  // namespace nf12::arch::host

namespace nf12::arch {

int lane() { return host::current->running % kWave; }

int wave() {
  const int wave = host::current->running / kWave;
  host::check_uniform("wave", static_cast<uint64_t>(wave));
  return wave;
}

int block_x() { return host::current->x; }
int block_y() { return host::current->y; }

void sync_block() {
  host::meet(host::State::kAtBlock, {"sync_block", static_cast<uint64_t>(host::current->epoch)});
}

uint32_t broadcast(uint32_t value, int from) {
  return host::meet_wave("broadcast", static_cast<uint64_t>(from), value, from);
}

void sync_wave() {
  host::meet_wave("sync_wave", host::self().syncs, 0, 0);
  ++host::self().syncs;
}

void await_copies() {
  const std::vector<host::Copy> landed = std::move(host::self().copies);
  host::self().copies.clear();
  for (const host::Copy& copy : landed)
    for (int j = 0; j < 4; ++j) host::shared_store(copy.array, copy.i + j, copy.words.w[j]);
}

void signal_block() {
  if (host::self().signalled) host::report("signals twice");
  host::self().signalled = true;
}

void wait_block() {
  if (!host::self().signalled) host::report("waits without a signal");
  host::meet(host::State::kAtBlock, {"wait_block", static_cast<uint64_t>(host::current->epoch)});
  host::self().signalled = false;
}

}  // namespace nf12::arch
