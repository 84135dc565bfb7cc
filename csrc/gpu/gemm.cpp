#include <algorithm>
#include <cmath>

#include "csrc/format/scale.hpp"
#include "csrc/gemm/stream/plan.hpp"
#include "csrc/gpu/gpu.hpp"

namespace nf12::gpu {

using runtime::Kernel;

namespace {

static_assert(runtime::kMostClusterBlocks == kMostClusterBlocks);

constexpr int stream_shared_bytes(int tokens) {
  return tokens == 8 ? StreamPlan<stream_config(8)>::kSharedBytes
                     : StreamPlan<stream_config(16)>::kSharedBytes;
}

GemmTraits traits_of(const Device& device) {
  const int processors = device.multiprocessors();
  GemmTraits traits = device.vendor() == runtime::Vendor::kAmd ? rdna4_traits(processors)
                                                               : nvidia_traits(processors);
  for (int tokens = 1; tokens <= kFusedMaxTokens; ++tokens)
    traits.fused |= uint32_t{device.has(runtime::fused_kernel(tokens))} << (tokens - 1);
  for (int i = 0; i < 4; ++i)
    traits.matrix |= uint32_t{device.has(runtime::matrix_kernel(kMatrixTokens[i]))} << i;
  traits.stream = true;
  for (const int tokens : {8, 16})
    traits.stream &= device.has(runtime::stream_kernel(tokens)) &&
                     stream_shared_bytes(tokens) <= device.shared_bytes();
  for (int i = 0; i < 4; ++i)
    traits.cluster |= uint32_t{device.has(runtime::cluster_kernel(kClusterTokens[i]))} << i;
  traits.clusters[1] = processors;
  for (int blocks = 2; blocks <= kMostClusterBlocks; ++blocks)
    traits.clusters[blocks] = device.clusters(blocks);
  traits.shared_bytes = device.shared_bytes();
  traits.combine = device.has(Kernel::gemm_combine);
  traits.unpack = true;
  for (const int alignment : {16, 4, 2})
    traits.unpack &= device.has(runtime::unpack_kernel(alignment));
  return traits;
}

}  // namespace

const GemmTraits& gemm_traits(const Device& device) {
  thread_local const Device* known = nullptr;
  thread_local GemmTraits traits;
  if (known != &device) {
    traits = traits_of(device);
    known = &device;
  }
  return traits;
}

GemmLaunch plan_gemm(const GemmArgs& args, const GemmChoice& choice, const GemmTraits& traits) {
  GemmLaunch launch = {};
  GemmParams& p = launch.params.gemm;
  p.weight = args.w;
  p.x = args.x;
  p.bias = args.bias;
  p.y = args.y;
  p.x_stride = args.x_row_stride;
  p.y_stride = args.y_row_stride;
  launch.tokens = args.m;
  p.m = static_cast<int32_t>((args.m + choice.passes - 1) / choice.passes);
  p.scale = std::ldexp(1.0f, -scale_shift(args.w.base));
  if (choice.path == GemmPath::kFused) {
    launch.kernel = runtime::fused_kernel(choice.tokens);
    launch.grid = fused_grid(fused_config(choice.tokens), p, choice.splits);
    p.scalar_columns = scalar_columns_of(p.x, p.x_stride, args.m, args.w.k);
  } else if (choice.path == GemmPath::kStream) {
    const int64_t blocks = stream_blocks(tile_rows(args.w.n), traits.processors);
    launch.kernel = runtime::stream_kernel(choice.tokens);
    launch.grid = stream_grid(stream_config(choice.tokens), launch.params.stream, blocks);
    launch.shared_bytes = stream_shared_bytes(choice.tokens);
    p.splits = 1;  // blocks of a cluster
  } else if (choice.path == GemmPath::kCluster) {
    launch.kernel = runtime::cluster_kernel(choice.tokens);
    launch.grid = cluster_grid(cluster_config(choice.tokens), launch.params.cluster, choice.shape);
    // At least so much that a second block does not fit: two of one launch on a multiprocessor
    // would leave another one idle.
    launch.shared_bytes =
        std::max(cluster_shared_bytes(choice.tokens, choice.shape), traits.shared_bytes / 2 + 1024);
    return launch;
  } else {
    launch.kernel = runtime::matrix_kernel(choice.tokens);
    launch.grid = matrix_grid(matrix_config(choice.tokens), p, choice.splits);
  }
  launch.workspace_bytes = sizeof(float) * workspace_floats(p);
  return launch;
}

void gemm(Queue& queue, const GemmLaunch& launch, void* workspace) {
  if (launch.shared_bytes > 0) {
    auto params = launch.params;
    GemmParams& p = params.gemm;
    for (int64_t left = launch.tokens; left > 0; left -= p.m) {
      p.m = static_cast<int32_t>(std::min<int64_t>(p.m, left));
      queue.launch_dependent(launch.kernel, launch.grid.x, p.splits, launch.grid.threads,
                             launch.shared_bytes, params);
      p.x += p.m * p.x_stride;
      p.y += p.m * p.y_stride;
    }
    return;
  }
  GemmParams p = launch.params.gemm;
  // By this pointer the kernels know whether to write sums or y.
  p.partials = p.splits > 1 ? static_cast<float*>(workspace) : nullptr;
  queue.launch(launch.kernel, launch.grid.x, launch.grid.y, launch.grid.threads, p);
  if (p.splits == 1) return;
  const Grid last = combine_grid(p);
  queue.launch(Kernel::gemm_combine, last.x, last.y, last.threads, p);
}

}  // namespace nf12::gpu
