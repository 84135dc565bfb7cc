#include "csrc/gpu/gpu.hpp"
#include "csrc/unpack/launch.hpp"

namespace nf12::gpu {

void unpack(Queue& queue, const PackedStack& w, int64_t experts, uint16_t* out) {
  const int64_t n = w.first.n, k = w.first.k;
  UnpackParams p = {w, {out, n * k, k, 0, 0}, {}};
  const int64_t blocks = unpack_launch(p, experts);
  const int alignment = unpack_alignment(p.out, experts);
  queue.launch(runtime::unpack_kernel(alignment), blocks, 1, kUnpackWaves * arch::kWave, p);
}

}  // namespace nf12::gpu
