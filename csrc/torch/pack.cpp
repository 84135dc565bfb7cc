// nf12::pack: a dense BF16 weight to its four tensors. On a GPU it waits for the device, since the
// size of the side table is known only then: it cannot be captured.
#include <vector>

#include "csrc/cpu/cpu.hpp"
#include "csrc/torch/arguments.hpp"
#include "csrc/torch/checks.hpp"
#include "csrc/torch/error.hpp"
#include "csrc/torch/gpu.hpp"
#include "csrc/torch/ops.hpp"
#include "csrc/torch/parallel.hpp"

namespace nf12::torch_ops {
namespace {

constexpr const char* kOp = Pack::kName;

struct PackedTensors {
  Tensor payload, index, escapes, meta;
};

cpu::PackSource source_of(const Tensor& weight) {
  const auto shape = weight.sizes();
  const auto strides = weight.strides();
  const size_t dim = shape.size();
  return {.weight = weight.data<const uint16_t>(kOp, "weight"),
          .experts = dim == 3 ? shape[0] : 1,
          .n = shape[dim - 2],
          .k = shape[dim - 1],
          .expert_stride = dim == 3 ? strides[0] : 0,
          .row_stride = strides[dim - 2]};
}

void check_status(cpu::PackStatus status, int64_t base, int64_t quads) {
  if (status == cpu::PackStatus::kBaseLosesBits)
    fail(kOp, "base ", base,
         " would lose bits of this weight, leave the choice to the packer (-1)");
  if (status == cpu::PackStatus::kTableTooLarge)
    fail(kOp, "the side table needs ", quads, " quads, the most is ", kMaxQuads);
}

// Payload and side table, once the length of the table is known.
cpu::PackResult allocate(PackedTensors& packed, int64_t quads, Device device) {
  const auto tiles = packed.index.sizes();
  std::vector<int64_t> shape(tiles.begin(), tiles.end());
  shape.push_back(kTileBytes);
  packed.payload = empty(kOp, shape, dtypes().uint8, device);
  packed.escapes = empty(kOp, {quads * kEntriesPerQuad}, dtypes().int32, device);
  return {.payload = packed.payload.data<uint8_t>(kOp, "payload"),
          .index = packed.index.data<uint32_t>(kOp, "index"),
          .escapes = packed.escapes.data<uint32_t>(kOp, "escapes")};
}

// Fills all but meta; returns the base.
int32_t run_cpu(const cpu::PackSource& source, int64_t base, Device device, PackedTensors& packed) {
  const cpu::Parallel parallel = torch_parallel();
  const cpu::PackPlan plan = cpu::plan_pack(source, static_cast<int>(base),
                                            packed.index.data<uint32_t>(kOp, "index"), parallel);
  check_status(plan.status, base, plan.quads);
  cpu::write_pack(source, plan, allocate(packed, plan.quads, device), parallel);
  return plan.base;
}

int32_t run_gpu(const gpu::Device& gpu, const cpu::PackSource& from, int64_t base, Device device,
                PackedTensors& packed) {
  using runtime::Kernel;
  for (const Kernel kernel :
       {Kernel::pack_survey_a16, Kernel::pack_survey_a2, Kernel::pack_count_a16,
        Kernel::pack_count_a2, Kernel::pack_encode_a16, Kernel::pack_encode_a2,
        Kernel::pack_compare, Kernel::pack_raw})
    check_kernel(kOp, gpu, kernel);
  if (!tiles_countable(from.experts, from.n, from.k))
    fail(kOp, "weight has more than 2^31 tiles, pack it expert by expert");
  const gpu::PackSource source{{from.weight, from.expert_stride, from.row_stride,
                                static_cast<int32_t>(from.n), static_cast<int32_t>(from.k)},
                               from.experts};
  const auto workspace_bytes = static_cast<int64_t>(gpu::pack_workspace_bytes(source));
  const Tensor memory = empty(kOp, {workspace_bytes}, dtypes().uint8, device);
  void* workspace = memory.data(kOp, "the workspace");

  gpu::Queue queue(gpu, current_stream(kOp, device));
  const gpu::PackPlan plan = gpu::plan_pack(queue, source, static_cast<int>(base),
                                            packed.index.data<uint32_t>(kOp, "index"), workspace);
  check_status(plan.status, base, plan.quads);
  gpu::write_pack(queue, source, plan, allocate(packed, plan.quads, device), workspace);
  return plan.base;
}

// On the CPU wherever the weight is: its integers are read there, never in forward.
Tensor meta_of(const cpu::PackSource& source, int32_t base) {
  const Device cpu{aoti_torch_device_type_cpu(), -1};
  Tensor meta = empty(kOp, {4}, dtypes().int32, cpu);
  auto* words = meta.data<int32_t>(kOp, "meta");
  words[0] = kFormatVersion;
  words[1] = static_cast<int32_t>(source.n);
  words[2] = static_cast<int32_t>(source.k);
  words[3] = base;
  return meta;
}

PackedTensors pack(const Tensor& weight, int64_t base) {
  check_weight(kOp, weight, base);
  const Device device = weight.device();
  const gpu::Device* gpu = find_gpu(kOp, device);
  const bool has_rows = weight.sizes().back() == 1 || weight.strides().back() == 1;
  const Tensor copy = has_rows ? Tensor() : contiguous_copy(kOp, weight);
  const cpu::PackSource source = source_of(has_rows ? weight : copy);

  std::vector<int64_t> tiles;  // [R, C] or [X, R, C]
  if (weight.sizes().size() == 3) tiles.push_back(source.experts);
  tiles.push_back(tile_rows(source.n));
  tiles.push_back(tile_columns(source.k));
  PackedTensors packed;
  packed.index = empty(kOp, tiles, dtypes().int32, device);
  const int32_t chosen = gpu == nullptr ? run_cpu(source, base, device, packed)
                                        : run_gpu(*gpu, source, base, device, packed);
  packed.meta = meta_of(source, chosen);
  return packed;
}

}  // namespace

void Pack::run(StableIValue* stack) {
  Arguments arguments(stack);
  const Tensor weight = arguments.tensor();
  const int64_t base = arguments.integer();
  PackedTensors packed = pack(weight, base);
  stack[0] = to_word(std::move(packed.payload));
  stack[1] = to_word(std::move(packed.index));
  stack[2] = to_word(std::move(packed.escapes));
  stack[3] = to_word(std::move(packed.meta));
}

}  // namespace nf12::torch_ops
