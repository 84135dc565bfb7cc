// Runs a kernel on the CPU, cluster by cluster of blocks, each lane a fiber.
//
//   lanes       run in an order drawn anew from the seed at every meeting point, waves at a pace
//               drawn from it, so that nothing may depend on either; the seed is in every report
//   waves       broadcast() meets the 32 lanes of a wave; uniform words need no meeting, they
//               compare what each lane passes with what the first one passed
//   blocks      sync_block() meets all lanes
//   barriers    wait_barrier() lets others go on until the phase is over. Reported: a phase that a
//               card could not tell from the one before, a barrier that the lane has not seen open,
//               one opened twice, bytes beyond those expected, and a deadlock, with who waits where
//   clusters    blocks of one run interleaved. Reported: words sent to a block that has not been
//               shown to run, that has ended, or that ends without having waited for them
//   shared      each word knows its last write and the reads since, and each lane what it has been
//               told of the others by sync_wave, sync_block and barriers (order.hpp). Reported: a
//               read of what nobody wrote, a write and any other access of one word that are not
//               ordered, whichever came first; out of bounds. A product of a row of x that nobody
//               wrote is not: its sums are NaN, and only they
//   copies      land when they are awaited or with their arrival at a barrier, some time later.
//               Reported: a copy onto a word in use as soon as it sets out, and any access of the
//               word until it has landed
//   global      only registered buffers exist. Reported: any access outside them, misaligned ones,
//               a write to a read-only buffer, a second write to the same byte
//
// A report is an exception of type Report. Clusters run one after another: races between them are
// seen only as second writes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace nf12::arch::host {

struct Report : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Buffer {
  const void* begin;
  size_t bytes;
  bool writable;
  std::string name;
};

struct Launch {
  std::string kernel;  // for reports
  int grid_x, grid_y;
  int waves;
  uint64_t seed;
  std::vector<Buffer> buffers;
  int shared_bytes = 0;  // for a card: shared memory whose size the launch decides
  int cluster = 1;       // blocks of one, neighbours in x
};

void run(const Launch& launch, const std::function<void()>& kernel);

}  // namespace nf12::arch::host
