// nf12::gather: embedding rows, [*ids.shape, K].
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

constexpr const char* kOp = Gather::kName;

template <typename Id>
void gather_rows(const Tensor& ids, int64_t count, const Packed& w, uint16_t* out) {
  const auto* first = ids.data<const Id>(kOp, "ids");
  const int64_t bad = cpu::gather(w.first, first, count, out, torch_parallel());
  if (bad >= 0)
    fail(kOp, "ids holds ", static_cast<int64_t>(first[bad]), " at position ", bad,
         ", the packed weight has out_features ", w.first.n);
}

void run_cpu(const Tensor& ids, int64_t count, const Packed& w, uint16_t* out) {
  if (ids.dtype() == dtypes().int64)
    gather_rows<int64_t>(ids, count, w, out);
  else
    gather_rows<int32_t>(ids, count, w, out);
}

void run_gpu(const gpu::Device& gpu, const Tensor& ids, int64_t count, PackedArguments& packed,
             Packed& w, uint16_t* out) {
  align_for_gpu(kOp, Experts::kRefused, packed, w);
  for (const int alignment : {16, 4, 2}) check_kernel(kOp, gpu, runtime::gather_kernel(alignment));
  gpu::Queue queue(gpu, current_stream(kOp, w.device));
  const int id_bytes = ids.dtype() == dtypes().int64 ? 8 : 4;
  gpu::gather(queue, w.first, ids.data(kOp, "ids"), id_bytes, count, out);
}

bool is_contiguous(const Tensor& tensor) {
  bool contiguous = false;
  aoti_torch_is_contiguous(tensor.get(), &contiguous);
  return contiguous;
}

}  // namespace

void Gather::run(StableIValue* stack) {
  Arguments arguments(stack);
  const Tensor ids = arguments.tensor();
  PackedArguments packed = arguments.packed();
  Packed w = check_packed(kOp, packed, Experts::kRefused);
  check_ids(kOp, ids, w);
  const gpu::Device* gpu = find_gpu(kOp, w.device);

  const auto ids_shape = ids.sizes();
  std::vector<int64_t> shape(ids_shape.begin(), ids_shape.end());
  shape.push_back(w.first.k);
  Tensor out = empty(kOp, shape, dtypes().bfloat16, w.device);
  if (const int64_t count = checked_numel(ids_shape); count > 0) {
    const Tensor copy = is_contiguous(ids) ? Tensor() : contiguous_copy(kOp, ids);
    const Tensor& flat = copy ? copy : ids;
    auto* rows = out.data<uint16_t>(kOp, "the result");
    if (gpu != nullptr)
      run_gpu(*gpu, flat, count, packed, w, rows);
    else
      run_cpu(flat, count, w, rows);
  }
  stack[0] = to_word(std::move(out));
}

}  // namespace nf12::torch_ops
