// What is known to have happened before: the clocks by which the host model finds races.
//
// A lane's accesses are numbered by the meetings of its wave that order memory (sync_wave,
// sync_block) and, between two of those, by the lane's own arrivals at barriers. Writes that nobody
// waits for on the spot, copies and words sent by another block, belong to a phase of a barrier.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "csrc/arch/words.hpp"

namespace nf12::arch::host {

// Of a lane: its wave's meetings, then its own arrivals since.
struct Position {
  uint32_t meetings = 0, arrivals = 0;

  constexpr auto operator<=>(const Position&) const = default;
};

template <typename T>
void raise_all(std::vector<T>& to, const std::vector<T>& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}

struct Knowledge {
  struct Lane {
    int lane;
    Position before;

    bool operator==(const Lane&) const = default;
  };
  std::vector<uint32_t> waves;     // of each, accesses before so many meetings
  std::vector<Lane> lanes;         // of single lanes, accesses before this; ascending
  std::vector<uint32_t> barriers;  // of each: 0, or 1 for open and the number of phases over

  bool operator==(const Knowledge&) const = default;

  void join(const Knowledge& other) {
    raise_all(waves, other.waves);
    raise_all(barriers, other.barriers);
    auto at = lanes.begin();
    for (const Lane& theirs : other.lanes) {
      while (at != lanes.end() && at->lane < theirs.lane) ++at;
      at = add_lane_at(at, theirs);
    }
  }

  void add_lane(int lane, Position before) { add_lane_at(place_of(lane), {lane, before}); }

  // What the waves' meetings say already.
  void drop_old_lanes() {
    std::erase_if(lanes, [&](const Lane& l) { return l.before.meetings < meetings_of(l.lane); });
  }

  bool has(int lane, Position position) const {
    if (position.meetings < meetings_of(lane)) return true;
    const auto at = const_cast<Knowledge*>(this)->place_of(lane);
    return at != lanes.end() && at->lane == lane && position < at->before;
  }

  bool is_open(int barrier) const {
    return barrier < std::ssize(barriers) && barriers[barrier] > 0;
  }
  bool is_over(int barrier, int phase) const {
    return barrier < std::ssize(barriers) && static_cast<int>(barriers[barrier]) >= phase + 2;
  }
  void raise_barrier(int barrier, int phases_over) {
    if (std::ssize(barriers) <= barrier) barriers.resize(barrier + 1);
    barriers[barrier] = std::max(barriers[barrier], static_cast<uint32_t>(phases_over + 1));
  }

 private:
  uint32_t meetings_of(int lane) const {
    const auto wave = static_cast<size_t>(lane / kWave);
    return wave < waves.size() ? waves[wave] : 0;
  }
  std::vector<Lane>::iterator place_of(int lane) {
    return std::lower_bound(lanes.begin(), lanes.end(), lane,
                            [](const Lane& l, int wanted) { return l.lane < wanted; });
  }
  std::vector<Lane>::iterator add_lane_at(std::vector<Lane>::iterator at, const Lane& lane) {
    if (lane.before.arrivals == 0 || lane.before.meetings < meetings_of(lane.lane)) return at;
    if (at == lanes.end() || at->lane != lane.lane) return lanes.insert(at, lane);
    at->before = std::max(at->before, lane.before);
    return at;
  }
};

// Accesses of one kind by lanes of one wave between two of its meetings.
struct Access {
  int wave = -1;
  uint32_t lanes = 0;  // bit i: lane i
  Position last = {};  // of any of them

  bool is_none() const { return lanes == 0; }
  // A lane that `knowledge` says nothing of, other than `self`; -1: none.
  int unknown_lane(const Knowledge& knowledge, int self) const {
    if (lanes == 0 || (wave < std::ssize(knowledge.waves) && last.meetings < knowledge.waves[wave]))
      return -1;
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      const int lane = wave * kWave + std::countr_zero(rest);
      if (lane != self && !knowledge.has(lane, last)) return lane;
    }
    return -1;
  }
  void note(int lane, Position position) {
    if (position.meetings != last.meetings || wave != lane / kWave) lanes = 0;
    wave = lane / kWave;
    lanes |= 1u << lane % kWave;
    last = lanes == 1u << lane % kWave ? position : std::max(last, position);
  }
};

// Accesses that need not be ordered among themselves: reads, or atomic ones.
class Accesses {
 public:
  int unknown_lane(const Knowledge& knowledge, int self) const {
    int found = first_.unknown_lane(knowledge, self);
    for (size_t i = 0; i < more_.size() && found < 0; ++i)
      found = more_[i].unknown_lane(knowledge, self);
    return found;
  }
  // Those that the lane knows of need no record beside its own.
  void note(const Knowledge& knowledge, int lane, Position position) {
    const auto is_own = [&](const Access& a) { return a.wave == lane / kWave && !a.is_none(); };
    const auto is_free = [&](const Access& a) { return a.unknown_lane(knowledge, lane) < 0; };
    if (Access* own = find(is_own)) return own->note(lane, position);
    Access* access = find(is_free);
    if (!access) access = &more_.emplace_back();
    *access = {};
    access->note(lane, position);
  }
  void clear() {
    first_ = {};
    more_.clear();
  }

 private:
  template <typename Wanted>
  Access* find(const Wanted& wanted) {
    if (wanted(first_)) return &first_;
    const auto at = std::find_if(more_.begin(), more_.end(), wanted);
    return at == more_.end() ? nullptr : &*at;
  }

  Access first_;
  std::vector<Access> more_;
};

}  // namespace nf12::arch::host
