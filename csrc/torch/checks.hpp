// What every operator demands of its arguments, before a pointer is taken.
//
// nf12/ops.py repeats these rules with the same texts for traced code; tests/test_errors.py holds
// the two together. Each throws "nf12::<op>: <argument> <value>, <rule>".
#pragma once
#include <cstdint>

#include "csrc/format/layout.hpp"
#include "csrc/torch/arguments.hpp"
#include "csrc/torch/tensor.hpp"

namespace nf12::torch_ops {

enum class Experts { kRefused, kAllowed };  // whether payload may be [X, R, C, 1536]

// A checked packed weight: PackedView of each expert, and what the operators allocate by.
struct Packed {
  PackedView first;  // expert 0
  int64_t experts;   // 1 for a 3-D payload
  bool is_stack;     // a 4-D payload
  int64_t payload_expert_bytes;
  int64_t index_expert_words;
  Device device;

  PackedView expert(int64_t x) const {
    PackedView view = first;
    view.payload += x * payload_expert_bytes;
    view.index += x * index_expert_words;
    return view;
  }
};

// Types, shapes, strides and ranges; the data is not read.
Packed check_packed(const char* op, const PackedArguments& w, Experts experts);

// The packed weight as columns of one row-major matrix: which dimensions of a tensor [..., columns]
// collapse into rows of one stride.
struct Rows {
  int64_t rows;
  int64_t stride;  // elements between rows; `columns` if there is at most one row
  bool is_view;    // else the tensor needs a copy: its columns are not contiguous, or its leading
                   // dimensions have no common stride
};
Rows rows_of(const Tensor& tensor);

// x [..., in_features] and bias [out_features], BF16, on the weight's device.
void check_gemm(const char* op, const Tensor& x, const Packed& w, const Tensor& bias);

// out [..., out_features]: BF16, the shape of the result, no element twice, no memory of an input.
void check_out(const char* op, const Tensor& out, const Tensor& x, const PackedArguments& packed,
               const Tensor& bias);

void check_ids(const char* op, const Tensor& ids, const Packed& w);

// weight [N, K] or [X, N, K] BF16 and base -1 or 96..128.
void check_weight(const char* op, const Tensor& weight, int64_t base);

}  // namespace nf12::torch_ops
