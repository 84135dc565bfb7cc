// nf12::gather: embedding rows, [*ids.shape, K].
#include <vector>

#include "csrc/cpu/cpu.hpp"
#include "csrc/torch/arguments.hpp"
#include "csrc/torch/checks.hpp"
#include "csrc/torch/error.hpp"
#include "csrc/torch/ops.hpp"
#include "csrc/torch/parallel.hpp"

namespace nf12::torch_ops {
namespace {

template <typename Id>
void gather_rows(const char* op, const Tensor& ids, int64_t count, const Packed& w, uint16_t* out) {
  const auto* first = ids.data<const Id>(op, "ids");
  const int64_t bad = cpu::gather(w.first, first, count, out, torch_parallel());
  if (bad >= 0)
    fail(op, "ids holds ", static_cast<int64_t>(first[bad]), " at position ", bad,
         ", the packed weight has out_features ", w.first.n);
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
  const PackedArguments packed = arguments.packed();
  const Packed w = check_packed(kName, packed, Experts::kRefused);
  check_ids(kName, ids, w);
  check_kernels(kName, w.device);

  const auto ids_shape = ids.sizes();
  std::vector<int64_t> shape(ids_shape.begin(), ids_shape.end());
  shape.push_back(w.first.k);
  Tensor out = empty(kName, shape, dtypes().bfloat16, w.device);
  if (const int64_t count = checked_numel(ids_shape); count > 0) {
    const Tensor copy = is_contiguous(ids) ? Tensor() : contiguous_copy(kName, ids);
    const Tensor& flat = copy ? copy : ids;
    auto* rows = out.data<uint16_t>(kName, "the result");
    if (ids.dtype() == dtypes().int64)
      gather_rows<int64_t>(kName, flat, count, w, rows);
    else
      gather_rows<int32_t>(kName, flat, count, w, rows);
  }
  stack[0] = to_word(std::move(out));
}

}  // namespace nf12::torch_ops
