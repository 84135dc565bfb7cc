// The host model's state of one cluster of blocks at work. Of the model only.
#pragma once
#include <ucontext.h>

#include <bitset>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/arch/host/model.hpp"
#include "csrc/arch/host/order.hpp"
#include "csrc/arch/words.hpp"

namespace nf12::arch::host {

enum class State { kReady, kAtWave, kAtLanes, kAtBlock, kAtBarrier, kAtCluster, kWaiting, kDone };

// What a lane passed to a uniform word or brought to a meeting.
struct Passed {
  const char* word;
  uint64_t value;
};

// The last write of a word: known to who knows of the lane, or of the barrier's phase.
struct Write {
  Access by;
  int barrier = -1, phase = 0;
};

// One word of shared memory.
struct SharedWord {
  uint32_t bits = 0;
  bool written = false;
  bool in_flight = false;   // a copy or another block's word is on its way here
  bool in_barrier = false;  // which plain accesses may not touch
  bool posted = false;      // a number to watch, likewise
  Write write = {};
  Accesses reads = {}, adds = {};  // since the write
  // For copies and matrix instructions, which do not see what lanes write as other lanes do:
  int hidden_wave = -1;       // lanes of it wrote here
  uint32_t hidden_lanes = 0;  // and have not shown it since
  Access shown = {};          // others have
  int pending = 0;            // reads by copies and matrix instructions that nobody has awaited
};

struct Block;
struct Barrier;

struct SharedArray {
  std::string name;
  Block* block;
  uint32_t address;  // in bytes, a multiple of 1,024
  std::vector<SharedWord> words;
  std::map<int, Barrier*> barriers = {};  // by their first word
};

// Counts arrivals and bytes, phase after phase.
struct Barrier {
  int id;
  SharedArray* array;
  int word;
  int arrivals;        // of each phase
  int missing;         // of this one
  int64_t bytes;       // of this one that have been announced and have not come
  bool shown = false;  // to copies
  int phase = 0;
  int last_fed = -1;              // the last phase to which bytes came
  Knowledge brought = {};         // by the arrivals of this phase
  Knowledge over = {};            // by those of all phases that are over
  std::vector<int> waiting = {};  // lanes
};

// Of 16 bytes to shared memory.
struct Copy {
  SharedArray* array;
  int i;
  Words<4> words;
  uint64_t group;
};

// At a barrier, once the copies before have landed.
struct Arrival {
  Barrier* barrier;
  uint64_t copies;
};

// Neighbouring words of shared memory, or those in whose place permuted rows have them.
struct Stretch {
  SharedArray* array;
  int i;
  int count;
  bool permuted = false;

  // Pieces of 16 bytes trade places within a row of 128, by the row's number modulo 8.
  int word(int j) const { return permuted ? (i + j) ^ ((i + j) >> 5 & 7) << 2 : i + j; }
};

// From one block to another, or by a copy whose bytes a barrier counts.
struct Sent {
  int from;
  Stretch to;
  std::vector<uint32_t> words;
  Barrier* barrier;
  bool early = false;  // may come before the barrier has been told to expect it
};

// A matrix instruction of a wave, until it is awaited.
inline constexpr int kMostTokens = 256;  // of a matrix instruction

struct Product {
  struct OfLane {
    float* sums;
    const uint32_t* registers;  // A, a fragment
    Words<4> held;              // which they held then
  };
  uint64_t group;
  int tokens;
  bool adds;
  Stretch a;             // of the wave's 16 rows; none: in registers
  Stretch b;             // both: rows of 32 words, of which the first eight
  uint64_t operands[2];  // as the lanes passed them
  OfLane lanes[kWave] = {};
  std::bitset<kMostTokens> unwritten = {};  // tokens of which nobody wrote x: their sums are NaN
};

struct Wave {
  int registers;  // of a lane
  std::deque<Product> products = {};
  uint64_t finished = 0;  // products
  int at_await = 0;       // lanes
};

struct Fiber {
  ucontext_t context;
  char* stack = nullptr;
  State state = State::kReady;
  Passed meeting = {"", 0};
  bool orders_memory = false;  // the meeting
  size_t uniform_words = 0;    // how many uniform words this lane has passed
  uint64_t meetings = 0;       // of the wave so far
  uint32_t deposits[2] = {};   // the last two values brought to a meeting: a lane may be one ahead
  uint64_t exchanges = 0;      // likewise for exchange
  bool signalled = false;      // between signal_block and wait_block
  Position position = {};
  Knowledge known = {};
  std::deque<Copy> copies = {};     // on their way
  uint64_t landed = 0, closed = 0;  // copies, groups of them
  std::deque<Arrival> arrivals = {};
  Barrier* barrier = nullptr;  // that it waits for
  int phase = 0;
  uint64_t cluster_arrivals = 0, cluster_waits = 0;
  std::vector<int> opened = {};  // barriers
  bool (*condition)(const void*) = nullptr;
  const void* condition_of = nullptr;
  std::vector<SharedWord*> hidden = {};
  std::deque<Stretch> reading = {};  // by copies of this lane
  bool writes = false;               // they do, to global memory
  std::map<int, int> waited = {};    // per barrier, the last phase it waited for by its parity
  bool products_open = false;
  uint64_t products = 0, product_groups = 0;  // set out, closed
};

struct Block {
  int x;
  std::map<std::string, SharedArray> shared = {};
  uint64_t meetings = 0;
  int done = 0;  // lanes
  Knowledge at_end = {};
  int free_registers = 0;
  uint32_t shared_end = 1024;  // the address after all arrays
};

struct Cluster {
  const Launch& launch;
  const std::function<void()>& kernel;
  std::mt19937_64& random;
  int y;
  std::vector<std::vector<uint8_t>>& written;  // per buffer and byte, over all blocks
  std::vector<Block> blocks = {};
  std::vector<Fiber> fibers = {};  // block after block
  std::vector<Wave> waves = {};
  std::vector<std::vector<Passed>> uniform = {};  // per wave, as its first lane passed them
  std::vector<Words<8>> exchanged[2] = {};        // per lane, for exchange
  std::deque<Barrier> barriers = {};
  std::vector<Sent> sent = {};
  uint64_t cluster_meetings = 0;
  Knowledge opened = {};  // barriers, by lanes that arrived at the cluster's meeting
  ucontext_t scheduler = {};
  int running = -1;
  std::exception_ptr failure = {};
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;

  int block_lanes() const { return launch.waves * kWave; }
  int block_of(int lane) const { return lane / block_lanes(); }
  Block& own_block() { return blocks[block_of(running)]; }
};

extern thread_local Cluster* current;

inline Fiber& self() { return current->fibers[current->running]; }
[[noreturn]] void report(const std::string& what);
// One past the last stands for the products of a wave: they are accesses of no lane.
std::string name_of_lane(int lane);
inline int lane_of_products(int wave) {
  return (static_cast<int>(current->waves.size()) + wave) * kWave;
}
void meet(State state, Passed meeting, bool orders_memory = false);
// Of a lane that a report leaves behind nobody destroys what is on its stack: nothing that
// allocates.
template <typename Condition>
void wait_until(const char* word, const Condition& condition) {
  while (!condition()) {
    self().condition = [](const void* of) { return (*static_cast<const Condition*>(of))(); };
    self().condition_of = &condition;
    meet(State::kWaiting, {word, 0});
  }
}

// shared.cpp
// Lets copies and sent words arrive, each with some probability in `one_in`; whether any did.
bool deliver(int one_in);
void check_end_of_block(Block& block);
std::string name_of_word(const SharedArray* array, int i);
SharedArray* array_of_block(int rank, const SharedArray* own);
Barrier& barrier_at(SharedArray* array, int i, const char* use);
// The words are read, and written, from now on; by no lane.
void begin_read(const Stretch& from, const char* access);
void end_read(const Stretch& from, const Knowledge& known, int lane, Position position);
void begin_write(const Stretch& to, std::vector<uint32_t> words, Barrier& barrier,
                 bool early = false);

// hopper.cpp
void check_end_of_lane();
void check_registers_at_end(int first_lane);

}  // namespace nf12::arch::host
