"""Tensors as bytes, and the one step that can lose any: rounding to BF16."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

CAST_CHUNK = 1 << 20

# The dtypes that anything here computes with; others are copied as bytes.
TORCH_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
    "C64": torch.complex64,
}


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def same_bytes(a: memoryview, b: memoryview) -> bool:
    """Whether two pieces are equal. A memoryview's own == goes byte by byte, 10 times slower."""
    return np.array_equal(np.frombuffer(a, np.uint8), np.frombuffer(b, np.uint8))


def cast_to_bf16(weight: Tensor) -> tuple[Tensor, float]:
    """`weight` rounded to BF16, and the largest error of a finite weight (inf if one overflows)."""
    result = torch.empty(weight.shape, dtype=torch.bfloat16)
    worst = 0.0
    parts = zip(
        torch.split(weight.reshape(-1), CAST_CHUNK),
        torch.split(result.reshape(-1), CAST_CHUNK),
        strict=True,
    )
    for source, rounded in parts:
        rounded.copy_(source)
        error = (rounded.float() - source.float()).abs()
        error[~source.isfinite()] = 0
        worst = max(worst, float(error.max()))
    return result, worst
