"""What tests share: weights with every kind of value, exact comparison, the gemm bound, guarded
output buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NAN, INF, MIN_SUBNORMAL, MAX_FINITE = 0x7FC0, 0x7F80, 0x0001, 0x7F7F


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bits(tensor: Tensor) -> Tensor:
    """BF16 values as their bit patterns, int32 0..65535."""
    return tensor.contiguous().view(torch.int16).int() & 0xFFFF


def from_bits(patterns: Tensor | Sequence[int]) -> Tensor:
    """The BF16 values of integer bit patterns."""
    return torch.as_tensor(patterns).to(torch.int16).view(torch.bfloat16)


def all_patterns() -> Tensor:
    """Every BF16 value, bfloat16 [65536]."""
    return from_bits(torch.arange(1 << 16))


# ---- weights ------------------------------------------------------------------------------------


def realistic_weights(
    *shape: int,
    escape_rate: float = 3.3e-4,
    tile_share: float = 0.1,
    base: int = 110,
    seed: int = 0,
) -> Tensor:
    """Weights like a trained layer's: a bell inside the window of `base`, and `escape_rate` of all
    weights outside it, all of them in `tile_share` of the tiles (16 x 64)."""
    g = generator(seed)
    top = 2.0 ** (base + 15 - 127)
    w = (torch.randn(shape, generator=g) * top / 8).clamp(-1.9 * top, 1.9 * top)
    least = 2.0 ** (base - 127)
    w = torch.where(w.abs() < least, torch.copysign(torch.tensor(least), w), w).bfloat16()
    *experts, n, k = shape
    tiles = torch.rand((*experts, -(-n // 16), -(-k // 64)), generator=g) < tile_share
    chosen = tiles.repeat_interleave(16, -2)[..., :n, :].repeat_interleave(64, -1)[..., :k]
    escape = chosen & (torch.rand(shape, generator=g) < escape_rate / tile_share)
    outside = torch.tensor([0.0, -0.0, least / 2, -least / 8, 4 * top, -32 * top]).bfloat16()
    picked = outside[torch.randint(len(outside), shape, generator=g)]
    return torch.where(escape, picked, w)


def special_weights(
    *shape: int, share: float = 0.02, seed: int = 0, finite: bool = False
) -> Tensor:
    """Ordinary weights with a `share` of any patterns: zeros of both signs, subnormals, Inf, NaN
    with payloads, huge and tiny. `finite` leaves Inf, NaN and the huge ones out."""
    g = generator(seed)
    w = (torch.randn(shape, generator=g) * 0.02).bfloat16()
    kinds = [
        torch.randint(0, 1 << 16, shape, generator=g),
        torch.randint(0, 2, shape, generator=g) << 15,  # +0, -0
        torch.randint(1, 128, shape, generator=g),  # subnormals
        0x7F80 | torch.randint(0, 128, shape, generator=g),  # Inf, NaN
    ]
    patterns = torch.stack(kinds).gather(0, torch.randint(4, (1, *shape), generator=g))[0]
    if finite:
        patterns = torch.where(patterns & 0x7FFF < 0x4180, patterns, patterns & 0x8000)
    chosen = torch.rand(shape, generator=g) < share
    return torch.where(chosen, from_bits(patterns), w)


def activations(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=generator(seed)).bfloat16()


# ---- layouts ------------------------------------------------------------------------------------


def offset_rows(tensor: Tensor, *, pad: int = 3, offset: int = 1) -> Tensor:
    """The same values with a longer row stride and an odd storage offset."""
    *lead, k = tensor.shape
    storage = torch.full((offset + tensor.numel() // k * (k + pad),), 7, dtype=tensor.dtype)
    view = storage[offset:].view(*lead, k + pad)[..., :k]
    view.copy_(tensor)
    return view


# ---- exact comparison ---------------------------------------------------------------------------


def assert_bits_equal(actual: Tensor, expected: Tensor, what: str = "") -> None:
    """Compares as integers: -0.0 differs from 0.0, and NaN payloads count."""
    assert actual.dtype == expected.dtype, f"{what} {actual.dtype} != {expected.dtype}"
    assert actual.shape == expected.shape, f"{what} {actual.shape} != {expected.shape}"
    assert actual.device == expected.device, f"{what} {actual.device} != {expected.device}"
    if actual.dtype == torch.bfloat16:
        actual, expected = bits(actual), bits(expected)
    differs = actual != expected
    count = int(differs.sum())
    if count:
        first = tuple(differs.nonzero()[0].tolist())
        a, b = int(actual[first]), int(expected[first])
        raise AssertionError(
            f"{what} {count} of {actual.numel()} differ, first at {first}: "
            f"{a:#06x} instead of {b:#06x}"
        )


# ---- gemm ---------------------------------------------------------------------------------------


def ulp_bf16(value: Tensor) -> Tensor:
    """Distance of neighbouring BF16 values at `value`, float64."""
    _, exponent = torch.frexp(value.abs())
    exponent = torch.where(value == 0, -133, exponent - 8)  # frexp calls the exponent of 0 zero
    return torch.ldexp(torch.ones_like(value), exponent.clamp(min=-133))


def gemm_reference(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x W^T + bias` in float64."""
    y = x.double() @ w.double().T
    return y if bias is None else y + bias.double()


def gemm_bound(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """Largest error that FP32 sums in any order and one rounding to BF16 can make:
    ulp_bf16(ref) / 2 + (K / 16 + 1) 2^-23 sum |x w|, the bias a term of the sum."""
    terms = gemm_reference(x.abs(), w.abs(), None if bias is None else bias.abs())
    half_ulp = ulp_bf16(gemm_reference(x, w, bias)) / 2
    return half_ulp + (x.shape[-1] / 16 + 1) * 2.0**-23 * terms


def assert_gemm_close(
    y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None = None, what: str = ""
) -> None:
    """Holds y [..., N] against the bound. Where the reference is not finite, y must be the same:
    NaN for NaN, Inf of the same sign for Inf."""
    assert y.dtype == torch.bfloat16 and y.shape == (*x.shape[:-1], w.shape[0]), what
    x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, w.shape[0])
    reference = gemm_reference(x, w, bias)
    error = (y.double() - reference).abs()
    same = (y.double() == reference) | (y.isnan() & reference.isnan())
    violation = ~same & ~(error <= gemm_bound(x, w, bias))
    count = int(violation.sum())
    if count:
        i, j = violation.nonzero()[0].tolist()
        raise AssertionError(
            f"{what} {count} of {y.numel()} outside the bound, first at {(i, j)}: "
            f"{float(y[i, j])} instead of {float(reference[i, j])}"
        )


# ---- guarded output buffers ---------------------------------------------------------------------


@dataclass
class GuardedBuffer:
    """An output inside a larger buffer: `view` is strided and every element around it is a
    sentinel, so that a kernel that writes too much, or too little, is found."""

    storage: Tensor  # 1-D
    view: Tensor  # [rows, columns]

    SENTINEL = 0x7FA5  # a NaN that no kernel makes

    @classmethod
    def create(cls, rows: int, columns: int, *, pad: int = 5, guard: int = 64) -> GuardedBuffer:
        size = 2 * guard + rows * (columns + pad)
        storage = from_bits(torch.full((size,), cls.SENTINEL))
        view = storage[guard : size - guard].view(rows, columns + pad)[:, :columns]
        return cls(storage, view)

    def check(self) -> None:
        """Every element of the view was written, none around it."""
        unwritten = int((bits(self.view) == self.SENTINEL).sum())
        assert not unwritten, f"{unwritten} elements of the output were not written"
        around = bits(self.storage) != self.SENTINEL
        outside = int(around.sum()) - self.view.numel()
        assert not outside, f"{outside} elements outside the output were written"
