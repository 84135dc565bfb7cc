// The host model's state of one cluster of blocks at work. Of the model only.
#pragma once
#include <ucontext.h>

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

enum class State { kReady, kAtWave, kAtBlock, kAtBarrier, kAtCluster, kDone };

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
  Write write = {};
  Accesses reads = {}, adds = {};  // since the write
};

struct Block;
struct Barrier;

struct SharedArray {
  std::string name;
  Block* block;
  std::vector<SharedWord> words;
  std::map<int, Barrier*> barriers = {};  // by their first word
};

// Counts arrivals and bytes, phase after phase.
struct Barrier {
  int id;
  SharedArray* array;
  int word;
  int arrivals;   // of each phase
  int missing;    // of this one
  int64_t bytes;  // of this one that have been announced and have not come
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

// From one block to another.
struct Sent {
  int from;
  SharedArray* array;
  int i;
  Words<2> words;
  Barrier* barrier;
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
};

struct Block {
  int x;
  std::map<std::string, SharedArray> shared = {};
  uint64_t meetings = 0;
  int done = 0;  // lanes
  Knowledge at_end = {};
};

struct Cluster {
  const Launch& launch;
  const std::function<void()>& kernel;
  std::mt19937_64& random;
  int y;
  std::vector<std::vector<uint8_t>>& written;  // per buffer and byte, over all blocks
  std::vector<Block> blocks = {};
  std::vector<Fiber> fibers = {};                 // block after block
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
std::string name_of_lane(int lane);
void meet(State state, Passed meeting, bool orders_memory = false);

// shared.cpp
// Lets copies and sent words arrive, each with some probability in `one_in`; whether any did.
bool deliver(int one_in);
void check_end_of_block(Block& block);

}  // namespace nf12::arch::host
