"""The shipped gfx1201 code of the fused kernel, executed instruction by instruction.

Run by hand: `TINYGRAD=/path/to/tinygrad pytest tests/rdna4`. Small integers make every sum exact in
FP32, so the result is compared as integers whatever order an instruction adds in.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import code_objects
import emulator
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nf12.packing import pack_spec

GUARD = 64  # elements before and after every output
SENTINEL = 0xA5A5

reason = emulator.why_not()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))

Words = NDArray[np.uint16]


class GemmParams(ctypes.Structure):
    """csrc/gemm/params.hpp, field by field."""

    _fields_ = [
        ("payload", ctypes.c_void_p),
        ("index", ctypes.c_void_p),
        ("escapes", ctypes.c_void_p),
        ("payload_stride_bytes", ctypes.c_int64),
        ("index_stride", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("quads", ctypes.c_uint32),
        ("base", ctypes.c_int32),
        ("x", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("partials", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("y_stride", ctypes.c_int64),
        ("m", ctypes.c_int32),
        ("splits", ctypes.c_int32),
        ("columns_per_split", ctypes.c_int32),
        ("scalar_columns", ctypes.c_int32),
        ("scale", ctypes.c_float),
    ]


class Loaded:
    """The kernels of several code objects as if they were one."""

    def __init__(self, *units: str) -> None:
        self._objects = [emulator.CodeObject(code_objects.path("gfx1201", u)) for u in units]

    def launch(self, kernel: str, grid: Sequence[int], threads: int, arguments: Any) -> None:
        holder = next(o for o in self._objects if kernel in o.kernels())
        holder.launch(kernel, grid, threads, arguments)


@pytest.fixture(scope="session")
def code_object() -> Loaded:
    return Loaded("gemm_fused", "gemm_combine")


def bf16_bits(values: NDArray[np.float64]) -> Words:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def bf16_rounded(values: NDArray[np.float64]) -> Words:
    as_float = torch.from_numpy(values).to(torch.float32).to(torch.bfloat16)
    return as_float.view(torch.int16).numpy().view(np.uint16)


def multiply(
    code: Loaded,
    x: Words,
    w: Words,
    bias: Words | None = None,
    splits: int = 1,
    x_gap: int = 0,
    x_offset: int = 0,
) -> Words:
    """y [m, n] of the kernel for m tokens, after its guard zones were found untouched."""
    (m, k), n = x.shape, w.shape[0]
    packed = pack_spec(torch.from_numpy(w.view(np.int16)).view(torch.bfloat16))
    payload, index, escapes = (t.contiguous().numpy() for t in packed[:3])
    base = int(packed[3][3])
    columns = -(-k // 64)
    x_memory = np.full(x_offset + m * (k + x_gap), 0x7FC0, np.uint16)  # NaN in the gaps
    for token in range(m):
        start = x_offset + token * (k + x_gap)
        x_memory[start : start + k] = x[token]
    y = np.full(m * n + 2 * GUARD, SENTINEL, np.uint16)
    per_split = -(-columns // splits)
    splits = -(-columns // per_split)
    partials = np.full((splits, m, n), np.nan, np.float32)
    x_address = x_memory.ctypes.data + 2 * x_offset
    aligned = x_address % 4 == 0 and (m == 1 or (k + x_gap) % 2 == 0)
    p = GemmParams(
        payload=payload.ctypes.data,
        index=index.ctypes.data,
        escapes=escapes.ctypes.data,
        payload_stride_bytes=columns * 1536,
        index_stride=columns,
        n=n,
        k=k,
        quads=escapes.size // 4,
        base=base,
        x=x_address,
        bias=None if bias is None else bias.ctypes.data,
        y=y.ctypes.data + 2 * GUARD,
        partials=partials.ctypes.data if splits > 1 else None,
        x_stride=k + x_gap,
        y_stride=n,
        m=m,
        splits=splits,
        columns_per_split=per_split,
        scalar_columns=k // 64 if aligned else 0,
        scale=2.0 ** (base - 112),
    )
    code.launch(f"nf12_gemm_fused_m{m}", (-(-n // 32), splits, 1), 256, p)
    if splits > 1:
        assert (y == SENTINEL).all(), "a split launch wrote y"
        code.launch("nf12_gemm_combine", (-(-n // 256), m, 1), 256, p)
    assert (y[:GUARD] == SENTINEL).all(), "written before y"
    assert (y[-GUARD:] == SENTINEL).all(), "written past y"
    return y[GUARD:-GUARD].reshape(m, n)


def integers(rng: np.random.Generator, m: int, n: int, k: int, zeros: float) -> tuple[Words, Words]:
    """x and w of small integers; `zeros` of the weights are 0, which is an escape."""
    x = rng.integers(-3, 4, (m, k)).astype(np.float64)
    w = rng.choice([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0], (n, k))
    w[rng.random((n, k)) < zeros] = 0
    return bf16_bits(x), bf16_bits(w)


def product(x: Words, w: Words, bias: Words | None = None) -> Words:
    def wide(bits: Words) -> NDArray[np.float64]:
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)

    y = wide(x) @ wide(w).T
    return bf16_rounded(y if bias is None else y + wide(bias))


def assert_equal_bits(got: Words, wanted: Words) -> None:
    where = np.argwhere(got != wanted)
    assert where.size == 0, (
        f"{len(where)} differ, first (token, row) {where[0]}: "
        f"{got[tuple(where[0])]:#06x}, wanted {wanted[tuple(where[0])]:#06x}"
    )


@pytest.mark.parametrize("m", range(1, 17))
def test_every_token_count(code_object: Loaded, m: int) -> None:
    """Three tile rows (an odd one, with a tail), waves with two, one and no columns, a K tail."""
    rng = np.random.default_rng(m)
    x, w = integers(rng, m, 41, 64 * 9 + 30, zeros=0.02)
    bias = bf16_bits(rng.integers(-9, 10, 41).astype(np.float64))
    assert_equal_bits(multiply(code_object, x, w, bias, x_gap=2), product(x, w, bias))


@pytest.mark.parametrize("zeros", [0.0, 0.001, 0.3])
@pytest.mark.parametrize("m", [1, 8, 11, 12, 16])
def test_clean_listed_and_raw_tiles(code_object: Loaded, m: int, zeros: float) -> None:
    x, w = integers(np.random.default_rng(7), m, 32, 192, zeros)
    assert_equal_bits(multiply(code_object, x, w), product(x, w))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (16, 64), (17, 65), (31, 127), (33, 128)])
@pytest.mark.parametrize("m", [1, 2, 16])
def test_tails(code_object: Loaded, m: int, n: int, k: int) -> None:
    x, w = integers(np.random.default_rng(8), m, n, k, zeros=0.01)
    assert_equal_bits(multiply(code_object, x, w), product(x, w))


@pytest.mark.parametrize("m", [1, 4, 13])
def test_rows_of_x_that_are_not_aligned(code_object: Loaded, m: int) -> None:
    x, w = integers(np.random.default_rng(9), m, 20, 131, zeros=0.05)
    assert_equal_bits(multiply(code_object, x, w, x_gap=1, x_offset=1), product(x, w))


@pytest.mark.parametrize("m", [1, 8, 16])
def test_splits(code_object: Loaded, m: int) -> None:
    x, w = integers(np.random.default_rng(10), m, 40, 64 * 12 + 5, zeros=0.01)
    assert_equal_bits(multiply(code_object, x, w, splits=3, x_gap=1), product(x, w))


def test_special_values(code_object: Loaded) -> None:
    """Infinities and NaN reach their row and no other; a NaN stays one."""
    x, w = integers(np.random.default_rng(11), 2, 32, 64, zeros=0.01)
    w[3, 5], w[20, 60], w[21, 0] = 0x7F80, 0xFF80, 0x7FC1
    x[:, 5], x[:, 60], x[:, 0] = 0x3F80, 0x3F80, 0x3F80
    y = multiply(code_object, x, w)
    assert (y[:, 3] == 0x7F80).all()
    assert (y[:, 20] == 0xFF80).all()
    assert ((y[:, 21] & 0x7FFF) > 0x7F80).all()
    finite = [row for row in range(32) if row not in (3, 20, 21)]
    assert_equal_bits(y[:, finite], product(x, w[finite]))
