// The operators' schemas and where torch's dispatcher finds them.
//
// The same code is registered for CPU and CUDA tensors: it checks its arguments and then asks the
// device what to do. Fake kernels, autograd and autocast are registered by nf12/ops.py.
#include <torch/csrc/stable/library.h>

#include <new>
#include <string_view>

#include "csrc/torch/error.hpp"
#include "csrc/torch/ops.hpp"

namespace {

using namespace nf12::torch_ops;

// Torch turns whatever leaves here into a RuntimeError of the same text.
template <typename Op>
void boxed(StableIValue* stack, uint64_t, uint64_t) {
  try {
    Op::run(stack);
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    fail(Op::kName, "cannot allocate memory");
  } catch (const std::exception& error) {
    std::string_view text = error.what();
    if (text.starts_with("nf12: ")) text.remove_prefix(6);  // the operator's name says it
    fail(Op::kName, text);
  }
}

void register_kernels(torch::stable::detail::StableLibrary& m) {
  m.impl("pack", boxed<Pack>);
  m.impl("unpack", boxed<Unpack>);
  m.impl("gemm", boxed<Gemm>);
  m.impl("_gemm", boxed<Gemm>);
  m.impl("gemm.out", boxed<GemmOut>);
  m.impl("check", boxed<Check>);
  m.impl("gather", boxed<Gather>);
}

}  // namespace

#define NF12_PACKED \
  "Tensor payload, Tensor index, Tensor escapes, int out_features, int in_features, int base"

STABLE_TORCH_LIBRARY(nf12, m) {
  m.def(
      "pack(Tensor weight, int base=-1) -> "
      "(Tensor payload, Tensor index, Tensor escapes, Tensor meta)");
  m.def("unpack(" NF12_PACKED ") -> Tensor");
  m.def("gemm(Tensor x, " NF12_PACKED ", Tensor? bias=None) -> Tensor");
  m.def("gemm.out(Tensor x, " NF12_PACKED ", Tensor? bias=None, *, Tensor(a!) out) -> ()");
  m.def("check(" NF12_PACKED ", int version) -> ()");
  m.def("gather(Tensor ids, " NF12_PACKED ") -> Tensor");
  // gemm without an Autograd key: registering one costs microseconds a call even when no gradient
  // is asked for. nf12.Linear calls this one then.
  m.def("_gemm(Tensor x, " NF12_PACKED ", Tensor? bias=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(nf12, CPU, m) { register_kernels(m); }
STABLE_TORCH_LIBRARY_IMPL(nf12, CUDA, m) { register_kernels(m); }
