"""Validates gemm on this machine: values against float64, time against dense BF16.

Data: x ~ N(0, 1), w ~ N(0, (0.3 / sqrt K)^2), so that |y| stays below 2, where half a BF16 ulp is
within the first of two bounds:

    |err| <= 2e-3 + 2e-3 |ref|                                     for this data
    |err| <= ulp_bf16(ref) / 2 + (K / 16 + 1) 2^-23 sum |x w|      at any scale

The second is what FP32 sums in any order and one rounding to BF16 can reach. Time is the median of
calls that alternate between dense and NF12 in one process.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nf12.backend import Backend, resolve_backend
from nf12.functional import gemm, pack, select
from nf12.packed_weight import PackedWeight

# (k, n) of linear layers of current models.
SHAPES = (
    (4096, 4096), (2048, 8192), (896, 4864), (4096, 14336), (4096, 28672), (25600, 5120),
    (8192, 8192), (11008, 4096),
)  # fmt: skip
CPU_SHAPES = SHAPES[:3]
TOKENS = (1, 8, 15, 16, 64)
MAX_REFERENCE = 2.0
MIN_CALLS, MAX_CALLS, TIMING_SECONDS = 5, 50, 0.3


@dataclass(frozen=True)
class Row:
    """One shape and token count. Violations count elements of y outside each bound."""

    k: int
    n: int
    m: int
    kernel: str
    dense_us: float
    nf12_us: float
    violations: int  # of 2e-3 + 2e-3 |ref|
    violations_any_scale: int
    rms_rel: float
    max_abs_ref: float

    @property
    def ratio(self) -> float:
        """Dense time over NF12 time: above 1 NF12 is faster."""
        return self.dense_us / self.nf12_us

    @property
    def passed(self) -> bool:
        in_range = self.max_abs_ref < MAX_REFERENCE
        return in_range and self.violations == 0 and self.violations_any_scale == 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "passed": self.passed}


def device_of(backend: Backend | str) -> torch.device:
    """Where a backend is validated: its own device, the GPU if there is one for auto and torch."""
    backend = Backend(backend)
    if backend in (Backend.HIP, Backend.CUDA):
        return torch.device("cuda")
    wants_gpu = backend is not Backend.CPU and torch.cuda.is_available()
    return torch.device("cuda" if wants_gpu else "cpu")


def run(
    backend: Backend | str = Backend.AUTO,
    shapes: tuple[tuple[int, int], ...] | None = None,
    tokens: tuple[int, ...] = TOKENS,
    seed: int = 0,
) -> Iterator[Row]:
    """Validates `backend` on each (k, n) of `shapes` and each m of `tokens`.

    BackendUnavailable with the reason where the backend is not there. Nothing runs before the first
    row is asked for.
    """
    device = device_of(backend)
    chosen = resolve_backend(backend, device)
    if shapes is None:
        shapes = CPU_SHAPES if device.type == "cpu" else SHAPES
    for k, n in shapes:
        generator = torch.Generator(device).manual_seed(seed)
        w = torch.randn(n, k, generator=generator, device=device).mul_(0.3 / k**0.5).bfloat16()
        packed = pack(w, backend=chosen)
        if not isinstance(packed, PackedWeight):
            raise ValueError(f"nf12: shape {k}x{n} cannot be validated: {packed.reason}")
        for m in tokens:
            x = torch.randn(m, k, generator=generator, device=device).bfloat16()
            yield _row(x, w, packed, chosen)


def _row(x: Tensor, w: Tensor, packed: PackedWeight, backend: Backend) -> Row:
    (m, k), n = x.shape, w.shape[0]
    y = gemm(x, packed, backend=backend)
    reference, terms = gemm_reference(x, w)
    error = (y.double() - reference).abs()
    any_scale = gemm_bound(reference, terms, k)
    dense_us, nf12_us = _alternate(
        lambda: F.linear(x, w), lambda: gemm(x, packed, backend=backend), x.device
    )
    kernel = "torch" if backend is Backend.TORCH else select(m, n, k, x.device).kernel
    return Row(
        k=k,
        n=n,
        m=m,
        kernel=kernel,
        dense_us=dense_us,
        nf12_us=nf12_us,
        violations=_count_outside(error, 2e-3 + 2e-3 * reference.abs()),
        violations_any_scale=_count_outside(error, any_scale),
        rms_rel=float(error.square().mean().sqrt() / reference.square().mean().sqrt()),
        max_abs_ref=float(reference.abs().max()),
    )


def gemm_reference(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """x W^T and sum |x w|, float64 [m, n], of BF16 x [m, k] and w [n, k].

    By slices of W, so that its float64 copy stays small.
    """
    x = x.double()
    products: list[Tensor] = []
    terms: list[Tensor] = []
    for start in range(0, w.shape[0], 1024):
        rows = w[start : start + 1024].double()
        products.append(x @ rows.T)
        terms.append(x.abs() @ rows.abs().T)
    return torch.cat(products, 1), torch.cat(terms, 1)


def gemm_bound(reference: Tensor, terms: Tensor, k: int) -> Tensor:
    """Largest error of FP32 sums over k in any order and one rounding to BF16, float64.

    `reference` is the exact result, `terms` the sum of the magnitudes it is summed from.
    """
    _, exponent = torch.frexp(reference.abs())
    exponent = torch.where(reference == 0, -133, exponent - 8)  # frexp calls that of 0 zero
    ulp = torch.ldexp(torch.ones_like(reference), exponent.clamp(min=-133))
    return ulp / 2 + (k / 16 + 1) * 2.0**-23 * terms


def _count_outside(error: Tensor, bound: Tensor) -> int:
    return int((~(error <= bound)).sum())  # a NaN is outside


@torch.inference_mode()
def _alternate(
    dense: Callable[[], object], packed: Callable[[], object], device: torch.device
) -> tuple[float, float]:
    """Median microseconds of two functions that take turns."""

    def call_us(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) * 1e6

    times: tuple[list[float], list[float]] = ([], [])
    call_us(dense), call_us(packed)  # warm up
    end = time.perf_counter() + TIMING_SECONDS
    while len(times[0]) < MIN_CALLS or (time.perf_counter() < end and len(times[0]) < MAX_CALLS):
        times[0].append(call_us(dense))
        times[1].append(call_us(packed))
    return statistics.median(times[0]), statistics.median(times[1])
