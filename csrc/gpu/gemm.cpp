#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>

#include "csrc/format/scale.hpp"
#include "csrc/gemm/stream/plan.hpp"
#include "csrc/gpu/gpu.hpp"
#include "csrc/unpack/launch.hpp"

namespace nf12::gpu {

using runtime::Kernel;

namespace {

constexpr int stream_shared_bytes(int tokens) {
  return with_tokens<kStreamTokens>(tokens, []<int t>(std::integral_constant<int, t>) {
    return StreamPlan<stream_config(t)>::kSharedBytes;
  });
}

GemmTraits traits_of(const Device& device) {
  const int processors = device.multiprocessors();
  GemmTraits traits = device.vendor() == runtime::Vendor::kAmd ? rdna4_traits(processors)
                                                               : nvidia_traits(processors);
  for (int tokens = 1; tokens <= kFusedMaxTokens; ++tokens)
    traits.fused |= uint32_t{device.has(runtime::fused_kernel(tokens))} << (tokens - 1);
  const auto forms_of = [&](const auto& tokens, auto kernel) {
    uint32_t there = 0;
    for (size_t i = 0; i < std::size(tokens); ++i)
      there |= uint32_t{device.has(kernel(tokens[i]))} << i;
    return there;
  };
  traits.matrix = forms_of(kMatrixTokens, runtime::matrix_kernel);
  traits.cluster = forms_of(kClusterTokens, runtime::cluster_kernel);
  traits.warpgroup = forms_of(kWarpgroupTokens, runtime::warpgroup_kernel);
  traits.stream = true;
  for (const int tokens : kStreamTokens)
    traits.stream &= device.has(runtime::stream_kernel(tokens)) &&
                     stream_shared_bytes(tokens) <= device.shared_bytes();
  for (int i = 0; i < 3; ++i) {
    const WideShape shape = {.tokens = kWideTokens[i]};
    traits.wide |= uint32_t{device.has(runtime::wide_kernel(shape.tokens)) &&
                            wide_shared_bytes(shape) <= device.shared_bytes()}
                   << i;
  }
  traits.once = device.has(Kernel::gemm_once_t256) &&
                OncePlan<kOnceTokens>::kSharedBytes <= device.shared_bytes();
  traits.clusters[1] = processors;
  for (int blocks = 2; blocks <= arch::kMostClusterBlocks; ++blocks)
    traits.clusters[blocks] = device.clusters(blocks);
  traits.shared_bytes = device.shared_bytes();
  traits.combine = device.has(Kernel::gemm_combine);
  traits.unpack = true;
  for (const int alignment : {16, 4, 2})
    traits.unpack &= device.has(unpack_kernel(device, alignment));
  return traits;
}

// At least so much that a second block does not fit: two of one launch on a multiprocessor would
// leave another one idle.
int shared_bytes_alone(int needed, const GemmTraits& traits) {
  return std::max(needed, traits.shared_bytes / 2 + 1024);
}

TensorMap map_of(const Device& device, const TensorLayout& layout) {
  TensorMap map;
  device.encode_tensor_map(&map, {.base = layout.base,
                                  .element_bytes = layout.element_bytes,
                                  .columns = layout.columns,
                                  .rows = layout.rows,
                                  .row_stride_bytes = layout.row_stride_bytes,
                                  .box_columns = layout.box_columns,
                                  .box_rows = layout.box_rows,
                                  .swizzled = layout.permuted});
  return map;
}

// A word that memory from torch's allocator does not hold: whatever it was used for, no other
// launch of this process has it, and ours take theirs back. So flags need no zeros beforehand,
// which would be a node of their own between two kernels. By splitmix64, from a seed of chance.
uint64_t new_flag() {
  static std::atomic<uint64_t> state = [] {
    std::random_device chance;
    return uint64_t{chance()} << 32 | chance();
  }();
  uint64_t z = state.fetch_add(0x9E3779B97F4A7C15u, std::memory_order_relaxed);
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return (z ^ z >> 31) | 1;  // never 0
}

void launch_wide(Queue& queue, const GemmLaunch& launch, char* workspace) {
  WideParams p = launch.params.wide;
  const Device& device = queue.device();
  if (p.shared_tiles > 0) {
    p.flag = new_flag();
    p.flags = reinterpret_cast<uint64_t*>(workspace);
    p.gemm.partials = reinterpret_cast<float*>(workspace + wide_flag_bytes(launch.wide));
  }
  p.encoded_map = map_of(device, encoded_layout(p.gemm.weight));
  p.x_map = map_of(device, x_layout(p.gemm, launch.wide.tokens));
  p.y_map = map_of(device, y_layout(p.gemm));
  queue.launch_dependent(launch.kernel, {launch.grid.x}, 1, launch.grid.threads,
                         launch.shared_bytes, p);
}

void launch_stream(Queue& queue, const GemmLaunch& launch, void* workspace) {
  StreamParams p = launch.params.stream;
  if (launch.workspace_bytes > 0) {
    p.flag = new_flag();
    p.sums = static_cast<FlaggedSum*>(workspace);
  }
  queue.launch_dependent(launch.kernel, {launch.grid.x}, 1, launch.grid.threads,
                         launch.shared_bytes, p);
}

void launch_warpgroup(Queue& queue, const GemmLaunch& launch) {
  WarpgroupParams p = launch.params.warpgroup;
  const GemmParams& gemm = p.cluster.gemm;
  const WarpgroupConfig config = warpgroup_config(launch.warpgroup_tokens);
  p.x_map = map_of(queue.device(), x_layout(gemm, warpgroup_box_tokens(config, p.tokens)));
  queue.launch_dependent(launch.kernel, {launch.grid.x, launch.grid.y}, gemm.splits,
                         launch.grid.threads, launch.shared_bytes, p);
}

// As many rows as the workspace holds, launch after launch.
void launch_once(Queue& queue, const GemmLaunch& launch, char* workspace) {
  const GemmParams all = launch.params.gemm;
  const Device& device = queue.device();
  const int64_t count_bytes = once_count_bytes(launch.wide, all.weight.k);
  for (int64_t block = 0; block < wide_row_blocks(all.weight.n); block += launch.wide.row_blocks) {
    OnceParams p = launch.params.once;
    GemmParams& gemm = p.wide.gemm;
    gemm.weight =
        slice_tile_rows(all.weight, block * kWideTileRows, launch.wide.row_blocks * kWideTileRows);
    gemm.y = all.y + block * kWideRows;
    gemm.bias = all.bias != nullptr ? all.bias + block * kWideRows : nullptr;
    p.counts = reinterpret_cast<uint32_t*>(workspace);
    p.decoded = reinterpret_cast<uint8_t*>(workspace + count_bytes);
    const Grid grid = once_grid(launch.wide, p);
    p.wide.x_map = map_of(device, x_layout(gemm, launch.wide.tokens / kOnceBlocks));
    p.wide.y_map = map_of(device, y_layout(gemm));
    queue.zero(p.counts, count_bytes);
    queue.launch_cluster(launch.kernel, {grid.x}, kOnceBlocks, grid.threads, launch.shared_bytes,
                         p);
  }
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
  launch.path = choice.path;
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
    const StreamConfig config = stream_config(choice.tokens);
    launch.kernel = runtime::stream_kernel(choice.tokens);
    launch.grid = stream_grid(config, launch.params.stream, choice.stream);
    launch.shared_bytes = stream_shared_bytes(choice.tokens);
    launch.workspace_bytes = stream_workspace_bytes(config, choice.stream);
    return launch;
  } else if (choice.path == GemmPath::kCluster && choice.warpgroup) {
    launch.warpgroup_tokens = choice.tokens;
    launch.kernel = runtime::warpgroup_kernel(choice.tokens);
    launch.grid =
        warpgroup_grid(warpgroup_config(choice.tokens), launch.params.warpgroup, choice.shape);
    launch.shared_bytes =
        shared_bytes_alone(warpgroup_shared_bytes(choice.tokens, choice.shape), traits);
    return launch;
  } else if (choice.path == GemmPath::kCluster) {
    launch.kernel = runtime::cluster_kernel(choice.tokens);
    launch.grid = cluster_grid(cluster_config(choice.tokens), launch.params.cluster, choice.shape);
    launch.shared_bytes =
        shared_bytes_alone(cluster_shared_bytes(choice.tokens, choice.shape), traits);
    return launch;
  } else if (choice.path == GemmPath::kWide) {
    launch.wide = choice.wide;
    launch.kernel = choice.wide.once ? Kernel::gemm_once_t256 : runtime::wide_kernel(choice.tokens);
    launch.grid = wide_grid(choice.wide, launch.params.wide);
    launch.shared_bytes = wide_shared_bytes(choice.wide);
    launch.workspace_bytes = wide_workspace_bytes(choice.wide, args.w.k);
    return launch;
  } else {
    launch.kernel = runtime::matrix_kernel(choice.tokens);
    launch.grid = matrix_grid(matrix_config(choice.tokens), p, choice.splits);
  }
  launch.workspace_bytes = sizeof(float) * workspace_floats(p);
  return launch;
}

void gemm(Queue& queue, const GemmLaunch& launch, void* workspace) {
  if (launch.wide.once) return launch_once(queue, launch, static_cast<char*>(workspace));
  if (launch.path == GemmPath::kWide)
    return launch_wide(queue, launch, static_cast<char*>(workspace));
  if (launch.path == GemmPath::kStream) return launch_stream(queue, launch, workspace);
  if (launch.warpgroup_tokens > 0) return launch_warpgroup(queue, launch);
  if (launch.path == GemmPath::kCluster) {
    auto params = launch.params;
    GemmParams& p = params.gemm;
    for (int64_t left = launch.tokens; left > 0; left -= p.m) {
      p.m = static_cast<int32_t>(std::min<int64_t>(p.m, left));
      queue.launch_dependent(launch.kernel, {launch.grid.x}, p.splits, launch.grid.threads,
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
