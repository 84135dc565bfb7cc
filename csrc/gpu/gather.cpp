#include "csrc/gather/launch.hpp"

#include "csrc/gpu/gpu.hpp"

namespace nf12::gpu {

void gather(Queue& queue, const PackedView& w, const void* ids, int id_bytes, int64_t count,
            uint16_t* out) {
  GatherParams p = {.weight = w,
                    .ids = ids,
                    .out = out,
                    .out_row_stride = w.k,
                    .count = count,
                    .id_bytes = id_bytes,
                    .blocks_x = 0,
                    .blocks_y = 0};
  gather_grid(p);
  queue.launch(runtime::gather_kernel(gather_alignment(p)), p.blocks_x, p.blocks_y,
               kGatherWaves * arch::kWave, p);
}

}  // namespace nf12::gpu
