// nf12::pack: a dense BF16 weight to its four tensors.
#include <vector>

#include "csrc/cpu/cpu.hpp"
#include "csrc/torch/arguments.hpp"
#include "csrc/torch/checks.hpp"
#include "csrc/torch/error.hpp"
#include "csrc/torch/ops.hpp"
#include "csrc/torch/parallel.hpp"

namespace nf12::torch_ops {
namespace {

struct PackedTensors {
  Tensor payload, index, escapes, meta;
};

cpu::PackSource source_of(const char* op, const Tensor& weight) {
  const auto shape = weight.sizes();
  const auto strides = weight.strides();
  const size_t dim = shape.size();
  return {.weight = weight.data<const uint16_t>(op, "weight"),
          .experts = dim == 3 ? shape[0] : 1,
          .n = shape[dim - 2],
          .k = shape[dim - 1],
          .expert_stride = dim == 3 ? strides[0] : 0,
          .row_stride = strides[dim - 2]};
}

Tensor meta_of(const char* op, const cpu::PackSource& source, int32_t base, Device device) {
  Tensor meta = empty(op, {4}, dtypes().int32, device);
  auto* words = meta.data<int32_t>(op, "meta");
  words[0] = kFormatVersion;
  words[1] = static_cast<int32_t>(source.n);
  words[2] = static_cast<int32_t>(source.k);
  words[3] = base;
  return meta;
}

PackedTensors pack(const char* op, const Tensor& weight, int64_t base) {
  check_weight(op, weight, base);
  const Device device = weight.device();
  check_kernels(op, device);
  const bool has_rows = weight.sizes().back() == 1 || weight.strides().back() == 1;
  const Tensor copy = has_rows ? Tensor() : contiguous_copy(op, weight);
  const cpu::PackSource source = source_of(op, has_rows ? weight : copy);

  std::vector<int64_t> tiles;  // [R, C] or [X, R, C]
  if (weight.sizes().size() == 3) tiles.push_back(source.experts);
  tiles.push_back(tile_rows(source.n));
  tiles.push_back(tile_columns(source.k));
  PackedTensors packed;
  packed.index = empty(op, tiles, dtypes().int32, device);
  auto* index = packed.index.data<uint32_t>(op, "index");

  const cpu::Parallel parallel = torch_parallel();
  const cpu::PackPlan plan = cpu::plan_pack(source, static_cast<int>(base), index, parallel);
  if (plan.status == cpu::PackStatus::kBaseLosesBits)
    fail(op, "base ", base, " would lose bits of this weight, leave the choice to the packer (-1)");
  if (plan.status == cpu::PackStatus::kTableTooLarge)
    fail(op, "the side table needs ", plan.quads, " quads, the most is ", kMaxQuads);

  tiles.push_back(kTileBytes);
  packed.payload = empty(op, tiles, dtypes().uint8, device);
  packed.escapes = empty(op, {plan.quads * kEntriesPerQuad}, dtypes().int32, device);
  cpu::write_pack(source, plan,
                  {.payload = packed.payload.data<uint8_t>(op, "payload"),
                   .index = index,
                   .escapes = packed.escapes.data<uint32_t>(op, "escapes")},
                  parallel);
  packed.meta = meta_of(op, source, plan.base, device);
  return packed;
}

}  // namespace

void Pack::run(StableIValue* stack) {
  Arguments arguments(stack);
  const Tensor weight = arguments.tensor();
  const int64_t base = arguments.integer();
  PackedTensors packed = pack(kName, weight, base);
  stack[0] = to_word(std::move(packed.payload));
  stack[1] = to_word(std::move(packed.index));
  stack[2] = to_word(std::move(packed.escapes));
  stack[3] = to_word(std::move(packed.meta));
}

}  // namespace nf12::torch_ops
