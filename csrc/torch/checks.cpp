#include "csrc/torch/checks.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "csrc/format/escapes.hpp"
#include "csrc/torch/error.hpp"

namespace nf12::torch_ops {
namespace {

constexpr int64_t kMaxFeatures = std::numeric_limits<int32_t>::max();  // meta holds them as int32

void check_dtype(const char* op, const char* name, const Tensor& tensor, int32_t expected) {
  const int32_t dtype = tensor.dtype();
  if (dtype == expected) [[likely]]
    return;
  if (!tensor.is_defined()) fail(op, name, " is None, expected a tensor");
  fail(op, name, " has dtype ", dtype_text(dtype), ", expected ", dtype_text(expected));
}

void check_device(const char* op, const char* name, const Tensor& tensor, Device weight) {
  const Device device = tensor.device();
  if (device != weight) [[unlikely]]
    fail(op, name, " is on ", device_text(device), ", the packed weight is on ",
         device_text(weight));
}

void check_range(const char* op, const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) [[unlikely]]
    fail(op, name, " is ", value, ", expected ", least, " .. ", most);
}

void check_escapes(const char* op, const Tensor& escapes) {
  const auto shape = escapes.sizes();
  if (shape.size() != 1) [[unlikely]]
    fail(op, "escapes has ", shape.size(), " dimensions, expected 1");
  if (shape[0] % kEntriesPerQuad != 0) [[unlikely]]
    fail(op, "escapes has ", shape[0], " entries, expected a multiple of ", kEntriesPerQuad);
  if (shape[0] / kEntriesPerQuad > kMaxQuads) [[unlikely]]
    fail(op, "escapes has ", shape[0] / kEntriesPerQuad, " quads, the most is ", kMaxQuads);
  if (shape[0] > 1 && escapes.strides()[0] != 1) [[unlikely]]
    fail(op, "escapes has stride ", escapes.strides()[0], ", expected 1");
}

// The tile dimension C of payload and index is contiguous; X and R may have any stride.
void check_tile_strides(const char* op, const Tensor& payload, const Tensor& index) {
  const auto strides = payload.strides();
  const size_t dim = strides.size();
  const int64_t columns = payload.sizes()[dim - 2];
  if (strides[dim - 1] != 1 || (columns > 1 && strides[dim - 2] != kTileBytes)) [[unlikely]]
    fail(op, "payload has strides ", shape_text(strides),
         ", the tiles of a row must be contiguous");
  if (columns > 1 && index.strides().back() != 1) [[unlikely]]
    fail(op, "index has strides ", shape_text(index.strides()),
         ", the tiles of a row must be contiguous");
}

// Bytes a tensor reaches over, for the question whether two tensors share memory.
struct Reach {
  uintptr_t begin;
  uintptr_t end;
};
Reach reach_of(const char* op, const char* name, const Tensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data(op, name));
  uintptr_t elements = 1;
  const auto shape = tensor.sizes();
  const auto strides = tensor.strides();
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return {begin, begin};
    elements += static_cast<uintptr_t>((shape[i] - 1) * strides[i]);
  }
  return {begin, begin + elements * aoti_torch_dtype_element_size(tensor.dtype())};
}

// Column blocks of one row-major buffer reach into each other without sharing an element.
bool are_column_blocks(const Tensor& a, const Tensor& b, ptrdiff_t distance_bytes) {
  if (a.dtype() != b.dtype() || a.sizes().empty() || b.sizes().empty()) return false;
  const Rows rows_a = rows_of(a);
  const Rows rows_b = rows_of(b);
  if (!rows_a.is_view || !rows_b.is_view || rows_a.stride != rows_b.stride || rows_a.stride <= 0)
    return false;
  const auto pitch = rows_a.stride * static_cast<int64_t>(aoti_torch_dtype_element_size(a.dtype()));
  const int64_t element_bytes = pitch / rows_a.stride;
  const int64_t distance = (distance_bytes % pitch + pitch) % pitch;
  return distance >= a.sizes().back() * element_bytes &&
         distance + b.sizes().back() * element_bytes <= pitch;
}

void check_unshared(const char* op, const Tensor& out, const Tensor& input, const char* name) {
  if (!input) return;
  const Reach a = reach_of(op, "out", out);
  const Reach b = reach_of(op, name, input);
  if (a.begin == a.end || b.begin == b.end || a.end <= b.begin || b.end <= a.begin) return;
  if (!are_column_blocks(out, input, static_cast<ptrdiff_t>(b.begin - a.begin)))
    fail(op, "out shares memory with ", name);
}

// Dimensions in order of stride must not step into the ones below.
bool has_overlap(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return false;
    if (shape[i] > 1) dims.emplace_back(strides[i], shape[i]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < reach) return true;
    reach += (size - 1) * stride;
  }
  return false;
}

}  // namespace

Packed check_packed(const char* op, const PackedArguments& w, Experts experts) {
  check_dtype(op, "payload", w.payload, dtypes().uint8);
  check_dtype(op, "index", w.index, dtypes().int32);
  check_dtype(op, "escapes", w.escapes, dtypes().int32);
  const Device device = w.payload.device();
  check_device(op, "index", w.index, device);
  check_device(op, "escapes", w.escapes, device);

  const auto shape = w.payload.sizes();
  const size_t dim = shape.size();
  const bool is_stack = experts == Experts::kAllowed && dim == 4;
  if (dim != 3 && !is_stack) [[unlikely]]
    fail(op, "payload has ", dim, " dimensions, expected 3",
         experts == Experts::kAllowed ? " or 4" : "");
  if (shape[dim - 1] != kTileBytes) [[unlikely]]
    fail(op, "payload has ", shape[dim - 1], " bytes a tile, expected ", kTileBytes);
  const auto tiles = shape.first(dim - 1);
  if (!std::ranges::equal(w.index.sizes(), tiles)) [[unlikely]]
    fail(op, "index is ", shape_text(w.index.sizes()), ", the tiles of payload are ",
         shape_text(tiles));
  check_escapes(op, w.escapes);

  check_range(op, "out_features", w.out_features, 1, kMaxFeatures);
  check_range(op, "in_features", w.in_features, 1, kMaxFeatures);
  check_range(op, "base", w.base, kMinBase, kMaxBase);
  const int64_t r = shape[dim - 3];
  const int64_t c = shape[dim - 2];
  if (r != tile_rows(w.out_features)) [[unlikely]]
    fail(op, "payload has ", r, " tile rows, out_features ", w.out_features, " needs ",
         tile_rows(w.out_features));
  if (c != tile_columns(w.in_features)) [[unlikely]]
    fail(op, "payload has ", c, " tile columns, in_features ", w.in_features, " needs ",
         tile_columns(w.in_features));
  check_tile_strides(op, w.payload, w.index);

  const auto payload_strides = w.payload.strides();
  const auto index_strides = w.index.strides();
  Packed packed;
  packed.first = {
      .payload = w.payload.data<const uint8_t>(op, "payload"),
      .index = w.index.data<const uint32_t>(op, "index"),
      .escapes = w.escapes.data<const uint32_t>(op, "escapes"),
      .payload_stride_bytes = payload_strides[dim - 3],
      .index_stride = index_strides[dim - 3],
      .n = w.out_features,
      .k = w.in_features,
      .quads = static_cast<uint32_t>(w.escapes.sizes()[0] / kEntriesPerQuad),
      .base = static_cast<int32_t>(w.base),
  };
  packed.is_stack = is_stack;
  packed.experts = is_stack ? shape[0] : 1;
  packed.payload_expert_bytes = is_stack ? payload_strides[0] : 0;
  packed.index_expert_words = is_stack ? index_strides[0] : 0;
  packed.device = device;
  return packed;
}

Rows rows_of(const Tensor& tensor) {
  const auto shape = tensor.sizes();
  const auto strides = tensor.strides();
  const int64_t columns = shape.back();
  Rows rows{1, columns, columns <= 1 || strides.back() == 1};
  // A dimension of one element has a stride that means nothing, however long: it never counts.
  int64_t next_stride = -1;
  for (size_t i = shape.size() - 1; i-- > 0;) {
    if (shape[i] == 1) continue;
    if (next_stride < 0)
      rows.stride = strides[i];
    else if (strides[i] != next_stride)
      rows.is_view = false;
    next_stride = strides[i] * shape[i];
    rows.rows *= shape[i];
  }
  return rows;
}

void check_gemm(const char* op, const Tensor& x, const Packed& w, const Tensor& bias) {
  check_dtype(op, "x", x, dtypes().bfloat16);
  check_device(op, "x", x, w.device);
  const auto shape = x.sizes();
  if (shape.empty()) [[unlikely]]
    fail(op, "x has 0 dimensions, expected at least 1");
  if (shape.back() != w.first.k) [[unlikely]]
    fail(op, "x has ", shape.back(), " columns, the packed weight has in_features ", w.first.k);
  if (!bias) return;
  check_dtype(op, "bias", bias, dtypes().bfloat16);
  check_device(op, "bias", bias, w.device);
  const auto bias_shape = bias.sizes();
  if (bias_shape.size() != 1 || bias_shape[0] != w.first.n) [[unlikely]]
    fail(op, "bias is ", shape_text(bias_shape), ", the packed weight has out_features ",
         w.first.n);
}

void check_out(const char* op, const Tensor& out, const Tensor& x, const PackedArguments& packed,
               const Tensor& bias) {
  check_dtype(op, "out", out, dtypes().bfloat16);
  check_device(op, "out", out, packed.payload.device());
  const auto x_shape = x.sizes();
  std::vector<int64_t> expected(x_shape.begin(), x_shape.end());
  expected.back() = packed.out_features;
  if (!std::ranges::equal(out.sizes(), expected)) [[unlikely]]
    fail(op, "out is ", shape_text(out.sizes()), ", expected ", shape_text(expected));
  if (has_overlap(out.sizes(), out.strides())) [[unlikely]]
    fail(op, "out is ", shape_text(out.sizes()), " with strides ", shape_text(out.strides()),
         ", its elements must not overlap");
  check_unshared(op, out, x, "x");
  check_unshared(op, out, packed.payload, "payload");
  check_unshared(op, out, packed.index, "index");
  check_unshared(op, out, packed.escapes, "escapes");
  check_unshared(op, out, bias, "bias");
}

void check_ids(const char* op, const Tensor& ids, const Packed& w) {
  const int32_t dtype = ids.dtype();
  if (!ids.is_defined()) fail(op, "ids is None, expected a tensor");
  if (dtype != dtypes().int32 && dtype != dtypes().int64) [[unlikely]]
    fail(op, "ids has dtype ", dtype_text(dtype), ", expected int32 or int64");
  check_device(op, "ids", ids, w.device);
}

void check_weight(const char* op, const Tensor& weight, int64_t base) {
  check_dtype(op, "weight", weight, dtypes().bfloat16);
  const auto shape = weight.sizes();
  if (shape.size() != 2 && shape.size() != 3) [[unlikely]]
    fail(op, "weight has ", shape.size(), " dimensions, expected 2 or 3");
  for (const int64_t size : shape)
    if (size < 1 || size > kMaxFeatures) [[unlikely]]
      fail(op, "weight is ", shape_text(shape), ", each size must be 1 .. ", kMaxFeatures);
  if (base != -1) check_range(op, "base", base, kMinBase, kMaxBase);
}

}  // namespace nf12::torch_ops
