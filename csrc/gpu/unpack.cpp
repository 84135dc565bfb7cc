#include "csrc/gpu/gpu.hpp"
#include "csrc/unpack/launch.hpp"

namespace nf12::gpu {

runtime::Kernel unpack_kernel(const Device& device, int alignment) {
  const runtime::Kernel kernel = runtime::unpack_tile_kernel(alignment);
  return device.has(kernel) ? kernel : runtime::unpack_kernel(alignment);
}

void unpack(Queue& queue, const PackedStack& w, int64_t experts, uint16_t* out) {
  const int64_t n = w.first.n, k = w.first.k;
  UnpackParams p = {w, {out, n * k, k, 0, 0}, {}};
  const int alignment = unpack_alignment(p.out, experts);
  const runtime::Kernel kernel = unpack_kernel(queue.device(), alignment);
  const bool tile_a_wave = kernel == runtime::unpack_tile_kernel(alignment);
  const int64_t blocks = unpack_launch(p, experts, tile_a_wave ? 1 : kUnpackTilesPerWave);
  queue.launch(kernel, blocks, 1, kUnpackWaves * arch::kWave, p);
}

}  // namespace nf12::gpu
