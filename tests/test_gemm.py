"""gemm at every level this processor has: shapes, token counts, escapes, special values."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from reference import (
    GuardedBuffer,
    activations,
    assert_bits_equal,
    assert_gemm_close,
    from_bits,
    generator,
    offset_rows,
    realistic_weights,
    special_weights,
)
from torch import Tensor

import nf12

ops = torch.ops.nf12
LEVELS = nf12.info()["cpu"]["supported"]
FLUSHING = ("avx512_bf16", "amx")  # their instructions take subnormals as zeros
Packed = tuple[Tensor, Tensor, Tensor, int, int, int]

# One less and one more than each count at which a kernel changes its path, its block of registers,
# its group of tokens or its pass over them.
TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 31, 32, 33, 48, 49, 64, 65, 127, 128, 129)


def pack(weight: Tensor, base: int = -1) -> Packed:
    payload, index, escapes, meta = ops.pack(weight, base)
    _, n, k, base = meta.tolist()
    return payload, index, escapes, n, k, base


def multiply(level: str, x: Tensor, packed: Packed, bias: Tensor | None = None) -> Tensor:
    """The kernel of `level` on a strided x, into a guarded buffer."""
    y = GuardedBuffer.create(x.shape[0], packed[3])
    with nf12.use_kernel(level):
        ops.gemm.out(offset_rows(x), *packed, bias, out=y.view)
    y.check()
    return y.view.clone()


def small_integers(*shape: int, least: int, most: int, seed: int) -> Tensor:
    return torch.randint(least, most + 1, shape, generator=generator(seed)).bfloat16()


@pytest.mark.parametrize("m", TOKENS)
@pytest.mark.parametrize("level", LEVELS)
def test_token_counts(level: str, m: int) -> None:
    weight, bias = realistic_weights(40, 200, tile_share=0.5), activations(40, seed=2)
    x = activations(m, 200)
    y = multiply(level, x, pack(weight), bias)
    assert_gemm_close(y, x, weight, bias)


@pytest.mark.parametrize("k", (1, 4, 63, 64, 65, 4096, 4104, 5120, 14336))
@pytest.mark.parametrize("level", LEVELS)
def test_shapes(level: str, k: int) -> None:
    for n in (1, 15, 16, 17, 48):
        weight = realistic_weights(n, k, tile_share=0.5)
        packed = pack(weight)
        for m in (1, 5):
            x = activations(m, k)
            y = multiply(level, x, packed)
            assert_gemm_close(y, x, weight, what=f"n {n} m {m}")


@pytest.mark.parametrize("m", (1, 3, 4, 20))
def test_levels_agree_to_the_bit_where_sums_are_exact(m: int) -> None:
    """Small integers, zeros in every tile, one raw tile: no order of summation rounds anything."""
    weight = small_integers(50, 300, least=-8, most=7, seed=1)
    weight[:, ::2] += weight[:, ::2] == 0  # escapes: about 30 zeros a tile, listed
    weight[16:32, 64:128] = small_integers(16, 64, least=-1, most=1, seed=2)  # raw
    x = small_integers(m, 300, least=-4, most=4, seed=3)
    packed = pack(weight)
    counts = packed[1] & 0xFF
    assert (counts == 255).any() and ((counts > 0) & (counts <= 64)).any()
    results = [multiply(level, x, packed) for level in LEVELS]
    expected = (x.double() @ weight.double().T).bfloat16()
    for level, y in zip(LEVELS, results, strict=True):
        assert_bits_equal(y, expected, level)


@pytest.mark.parametrize("base", (96, 105, 112, 119, 128))
@pytest.mark.parametrize("level", LEVELS)
def test_every_base_is_scaled_back(level: str, base: int) -> None:
    weight = realistic_weights(33, 130, base=base)
    x, bias = activations(4, 130), activations(33, seed=2)
    y = multiply(level, x, pack(weight, base), bias)
    assert_gemm_close(y, x, weight, bias)


@pytest.mark.parametrize("kind", ("listed", "raw", "mixed", "clean"))
@pytest.mark.parametrize("level", LEVELS)
def test_tiles_of_every_kind(level: str, kind: str) -> None:
    share = {"listed": 0.03, "raw": 0.3, "mixed": 0.062, "clean": 0.0}[kind]
    weight = special_weights(48, 320, share=share, finite=True)
    packed = pack(weight)
    counts = packed[1] & 0xFF
    present = {
        "clean": bool((counts == 0).any()),
        "listed": bool(((counts > 0) & (counts <= 64)).any()),
        "raw": bool((counts == 255).any()),
    }
    wanted = ("listed", "raw") if kind == "mixed" else (kind,)
    assert all(present[name] for name in wanted), present
    for m in (1, 7):
        x = activations(m, 320)
        y = multiply(level, x, packed)
        assert_gemm_close(y, x, weight)


@pytest.mark.parametrize("m", (1, 9))
@pytest.mark.parametrize("level", LEVELS)
def test_special_values_as_in_a_dense_product(level: str, m: int) -> None:
    """0 * Inf and Inf - Inf are NaN, in weights and activations; NaN stays NaN in y and bias."""
    weight, x = realistic_weights(64, 200), activations(m, 200)
    specials = from_bits([0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0x0000, 0x8000])
    for row in range(48):
        weight[row, (7 * row) % 200] = specials[row % 6]
        weight[row, (13 * row + 1) % 200] = specials[row // 6 % 6]
    x[-1, 14] = 0.0
    x[-1, 21] = torch.inf
    bias = activations(64, seed=2)
    bias[50], bias[51] = torch.nan, -torch.inf
    y = multiply(level, x, pack(weight), bias)
    assert y.isnan().any() and y.isinf().any()
    assert_gemm_close(y, x, weight, bias)


@pytest.mark.parametrize("level", LEVELS)
def test_subnormal_weights(level: str) -> None:
    weight = torch.zeros(32, 128).bfloat16()
    weight[:, 100] = from_bits(torch.arange(32) * 4 + 1)
    y = multiply(level, torch.ones(1, 128).bfloat16(), pack(weight, 112))
    if level in FLUSHING and not y.any():
        return
    assert_bits_equal(y[0], weight[:, 100])


@pytest.mark.parametrize("level", LEVELS)
def test_one_row_of_huge_stride_and_rows_that_repeat(level: str) -> None:
    weight = realistic_weights(40, 100)
    packed = pack(weight)
    x = activations(1, 100)
    lonely = torch.as_strided(x, (1, 100), (1 << 40, 1))
    repeated = x.expand(5, 100)
    with nf12.use_kernel(level):
        once, many = ops.gemm(lonely, *packed), ops.gemm(repeated, *packed)
    assert_gemm_close(once, x, weight)
    assert_gemm_close(many, repeated, weight)


@pytest.mark.parametrize("m", (1, 4, 40))
@pytest.mark.parametrize("level", LEVELS)
def test_threads_change_no_bit(level: str, m: int) -> None:
    packed = pack(realistic_weights(1000, 600))
    x = activations(m, 600)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        with nf12.use_kernel(level):
            results.append(ops.gemm(x, *packed))
    for y in results[1:]:
        assert_bits_equal(y, results[0])


SHOW_LEVEL = """
import sys, torch, nf12
from reference import activations, realistic_weights
packed = nf12.pack(realistic_weights(48, 100))
y = torch.ops.nf12.gemm(activations(9, 100), *packed.operands)
print(nf12.select(9, 48, 100, "cpu").kernel, *y.view(torch.int16).flatten().tolist())
"""


def run_with_level(
    level: str, variable: str = "NF12_CPU_LEVEL"
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {variable: level}
    return subprocess.run(
        [sys.executable, "-c", SHOW_LEVEL],
        cwd=Path(__file__).parent,
        env=environment,
        text=True,
        capture_output=True,
    )


def test_environment_forces_the_level() -> None:
    packed, x = pack(realistic_weights(48, 100)), activations(9, 100)
    for level in ("portable", LEVELS[-1]):
        done = run_with_level(level)
        assert done.returncode == 0, done.stderr
        name, *bits = done.stdout.split()
        expected = multiply(name, x, packed).view(torch.int16).flatten().tolist()
        assert list(map(int, bits)) == expected
        assert name == level or level != "portable"


@pytest.mark.parametrize("variable", ["NF12_CPU_LEVEL", "NF12_KERNEL"])
def test_environment_refuses_an_unknown_level(variable: str) -> None:
    done = run_with_level("avx1024", variable)
    assert done.returncode != 0
    assert f"{variable} is avx1024, not one of portable, avx2, avx512" in done.stderr


def test_environment_forces_a_kernel() -> None:
    packed, x = pack(realistic_weights(48, 100)), activations(9, 100)
    results = {name: run_with_level(name, "NF12_KERNEL") for name in ("portable", "auto", "")}
    for name, done in results.items():
        assert done.returncode == 0, done.stderr
        selected, *bits = done.stdout.split()
        expected = multiply(name if name == "portable" else selected, x, packed)
        assert list(map(int, bits)) == expected.view(torch.int16).flatten().tolist()
