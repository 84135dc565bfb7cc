"""The shipped gfx1201 code of the matrix kernel, executed instruction by instruction.

Run by hand: `TINYGRAD=/path/to/tinygrad pytest tests/rdna4`. Small integers make every sum exact in
FP32, so the result is compared as integers whatever order an instruction adds in.
"""

from __future__ import annotations

import code_objects
import emulator
import numpy as np
import pytest
import torch
from test_fused import (
    GUARD,
    SENTINEL,
    GemmParams,
    Words,
    assert_equal_bits,
    bf16_bits,
    integers,
    product,
)

from nf12.packing import pack_spec

WAVES = {16: 4, 32: 4, 64: 4, 128: 8}  # csrc/gemm/matrix/instances/configs.hpp
BLOCK_ROWS = 128  # of every shape

reason = emulator.why_not()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))


@pytest.fixture(scope="session")
def code_object() -> emulator.CodeObject:
    return emulator.CodeObject(code_objects.path("gfx1201", "gemm_matrix"))


def multiply(
    code: emulator.CodeObject,
    tokens: int,
    x: Words,
    w: Words,
    bias: Words | None = None,
    splits: int = 1,
    x_gap: int = 0,
    x_offset: int = 0,
) -> Words:
    """y [m, n] of the kernel for blocks of `tokens`, its guard zones found untouched; with splits,
    the sum of the partials."""
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
    per_split = 2 * -(-columns // (2 * splits))
    splits = -(-columns // per_split)
    partials = np.full(splits * m * n + 2 * GUARD, np.nan, np.float32)
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
        x=x_memory.ctypes.data + 2 * x_offset,
        bias=None if bias is None else bias.ctypes.data,
        y=y.ctypes.data + 2 * GUARD,
        partials=partials.ctypes.data + 4 * GUARD if splits > 1 else None,
        x_stride=k + x_gap,
        y_stride=n,
        m=m,
        splits=splits,
        columns_per_split=per_split,
        scale=2.0 ** (base - 112),
    )
    blocks = -(-n // BLOCK_ROWS) * -(-m // tokens)
    code.launch(f"nf12_gemm_matrix_t{tokens}", (blocks, splits, 1), 32 * WAVES[tokens], p)
    assert (y[:GUARD] == SENTINEL).all(), "written before y"
    assert (y[-GUARD:] == SENTINEL).all(), "written past y"
    if splits == 1:
        return y[GUARD:-GUARD].reshape(m, n)
    assert (y == SENTINEL).all(), "a split launch wrote y"
    assert np.isnan(partials[:GUARD]).all() and np.isnan(partials[-GUARD:]).all()
    sums = partials[GUARD:-GUARD].reshape(splits, m, n).astype(np.float64).sum(0)
    return bf16_bits(torch.from_numpy(sums * p.scale).to(torch.bfloat16).double().numpy())


@pytest.mark.parametrize("tokens", WAVES)
def test_every_shape(code_object: emulator.CodeObject, tokens: int) -> None:
    """Pairs of columns, one that has no pair, a K tail; rows of several waves, the last partial;
    tokens one short of a block."""
    rng = np.random.default_rng(tokens)
    x, w = integers(rng, tokens - 1, 41, 64 * 5 + 30, zeros=0.02)
    bias = bf16_bits(rng.integers(-9, 10, 41).astype(np.float64))
    assert_equal_bits(multiply(code_object, tokens, x, w, bias, x_gap=2), product(x, w, bias))


@pytest.mark.parametrize("zeros", [0.0, 0.001, 0.3])
@pytest.mark.parametrize("tokens", WAVES)
def test_clean_listed_and_raw_tiles(
    code_object: emulator.CodeObject, tokens: int, zeros: float
) -> None:
    x, w = integers(np.random.default_rng(7), 16, 32, 256, zeros)
    assert_equal_bits(multiply(code_object, tokens, x, w), product(x, w))


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (15, 16, 64), (17, 17, 65), (31, 31, 127), (33, 33, 128)]
)
def test_tails(code_object: emulator.CodeObject, m: int, n: int, k: int) -> None:
    x, w = integers(np.random.default_rng(8), m, n, k, zeros=0.01)
    assert_equal_bits(multiply(code_object, 32, x, w), product(x, w))


def test_several_blocks_each_way(code_object: emulator.CodeObject) -> None:
    x, w = integers(np.random.default_rng(9), 35, 150, 128, zeros=0.01)
    assert_equal_bits(multiply(code_object, 16, x, w), product(x, w))


@pytest.mark.parametrize(("gap", "offset"), [(1, 1), (0, 1), (5, 4)])
def test_rows_of_x_that_are_not_aligned(
    code_object: emulator.CodeObject, gap: int, offset: int
) -> None:
    x, w = integers(np.random.default_rng(10), 18, 20, 131, zeros=0.05)
    got = multiply(code_object, 32, x, w, x_gap=gap, x_offset=offset)
    assert_equal_bits(got, product(x, w))


@pytest.mark.parametrize("tokens", [16, 128])
def test_splits(code_object: emulator.CodeObject, tokens: int) -> None:
    x, w = integers(np.random.default_rng(11), 17, 40, 64 * 9 + 5, zeros=0.01)
    assert_equal_bits(multiply(code_object, tokens, x, w, splits=3, x_gap=1), product(x, w))


def test_special_values(code_object: emulator.CodeObject) -> None:
    """Infinities and NaN reach their row and no other; a NaN stays one."""
    x, w = integers(np.random.default_rng(12), 16, 32, 64, zeros=0.01)
    w[3, 5], w[20, 60], w[21, 0] = 0x7F80, 0xFF80, 0x7FC1
    x[:, 5], x[:, 60], x[:, 0] = 0x3F80, 0x3F80, 0x3F80
    y = multiply(code_object, 16, x, w)
    assert (y[:, 3] == 0x7F80).all()
    assert (y[:, 20] == 0xFF80).all()
    assert ((y[:, 21] & 0x7FFF) > 0x7F80).all()
    finite = [row for row in range(32) if row not in (3, 20, 21)]
    assert_equal_bits(y[:, finite], product(x, w[finite]))
