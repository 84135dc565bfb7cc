// Runs a kernel on the CPU, block by block, each lane a fiber.
//
//   lanes       run in an order drawn anew from the seed at every meeting point, so that nothing
//               may depend on it; the seed is in every report
//   waves       broadcast() meets the 32 lanes of a wave; uniform words need no meeting, they
//   compare
//               what each lane passes with what the first one passed
//   blocks      sync_block() meets all lanes and opens a new epoch
//   shared      each word knows its writer, its reader and their epochs. Reported: a read of what
//               nobody wrote, a write and any other access of one word by two lanes within one
//               epoch (a barrier is missing), out of bounds
//   global      only registered buffers exist. Reported: any access outside them, misaligned ones,
//               a write to a read-only buffer, a second write to the same byte
//
// A report is an exception of type Report. Blocks run one after another: races between blocks are
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
};

void run(const Launch& launch, const std::function<void()>& kernel);

}  // namespace nf12::arch::host
