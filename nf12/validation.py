"""Validates gemm on this machine: values against float64, time against dense BF16.

Data: x ~ N(0, 1), w ~ N(0, (0.3 / sqrt K)^2), so that |y| stays below 2, where half a BF16 ulp is
within the first of two bounds:

    |err| <= 2e-3 + 2e-3 |ref|                                     for this data
    |err| <= ulp_bf16(ref) / 2 + (K / 16 + 1) 2^-23 sum |x w|      at any scale

The second is what FP32 sums in any order and one rounding to BF16 can reach. Values are those of
the last timed call; timing.py says how cold and warm times are taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nf12 import timing
from nf12.backend import GPU_BACKENDS, Backend, default_backend, resolve_backend, unavailable_reason
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
ESCAPED_TILES = 0.1  # of the tiles hold all the escapes that a caller asks for


@dataclass(frozen=True)
class Row:
    """One shape and token count. Violations count elements of y outside each bound."""

    k: int
    n: int
    m: int
    kernel: str
    escape_rate: float  # asked for, beyond what the data have by themselves
    dense_us: float  # cold
    nf12_us: float
    dense_warm_us: float
    nf12_warm_us: float
    timed_as: str  # "graph" or "calls", see timing.py
    packed_bytes: int
    violations: int  # of 2e-3 + 2e-3 |ref|
    violations_any_scale: int
    rms_rel: float
    max_abs_ref: float

    @property
    def ratio(self) -> float:
        """Dense time over NF12 time, cold: above 1 NF12 is faster."""
        return self.dense_us / self.nf12_us

    @property
    def ratio_warm(self) -> float:
        return self.dense_warm_us / self.nf12_warm_us

    @property
    def gb_per_s(self) -> float:
        """Packed bytes a second, cold."""
        return self.packed_bytes / self.nf12_us / 1e3

    @property
    def passed(self) -> bool:
        in_range = self.max_abs_ref < MAX_REFERENCE
        return in_range and self.violations == 0 and self.violations_any_scale == 0

    def to_dict(self) -> dict[str, Any]:
        derived = {
            "ratio": self.ratio,
            "ratio_warm": self.ratio_warm,
            "gb_per_s": self.gb_per_s,
            "passed": self.passed,
        }
        return asdict(self) | derived


def device_of(backend: Backend | str) -> torch.device:
    """Where a backend is validated: the first GPU that it can use, else, for auto and torch, any
    GPU, else the CPU."""
    backend = Backend(backend)
    if backend is Backend.AUTO:
        backend = default_backend()
    wanted = {Backend.AUTO: GPU_BACKENDS, Backend.TORCH: ()}.get(backend, (backend,))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(gpus):
        if any(unavailable_reason(b, index) is None for b in wanted if b in GPU_BACKENDS):
            return torch.device("cuda", index)
    if backend in GPU_BACKENDS:
        return torch.device("cuda")  # whose reason resolve_backend gives
    return torch.device("cuda", 0) if gpus and backend is not Backend.CPU else torch.device("cpu")


def run(
    backend: Backend | str = Backend.AUTO,
    shapes: tuple[tuple[int, int], ...] | None = None,
    tokens: tuple[int, ...] = TOKENS,
    seed: int = 0,
    escape_rate: float = 0.0,
) -> Iterator[Row]:
    """Validates `backend` on each (k, n) of `shapes` and each m of `tokens`.

    escape_rate: of zeros and tiny weights, in a tenth of the tiles, as real models have them.
    BackendUnavailable with the reason where the backend is not there. Nothing runs before the first
    row is asked for.
    """
    device = device_of(backend)
    chosen = resolve_backend(backend, device)
    if shapes is None:
        shapes = CPU_SHAPES if device.type == "cpu" else SHAPES
    for k, n in shapes:
        generator = torch.Generator(device).manual_seed(seed)
        w = make_weight(n, k, generator, escape_rate)
        packed = pack(w, backend=chosen)
        if not isinstance(packed, PackedWeight):
            raise ValueError(f"nf12: shape {k}x{n} cannot be validated: {packed.reason}")
        xs = [torch.randn(m, k, generator=generator, device=device).bfloat16() for m in tokens]
        reference, terms = gemm_reference(torch.cat(xs), w)
        copies = timing.copies_for(device)
        case = _Case(
            dense=[w, *(w.clone() for _ in range(copies - 1))],
            packed=[packed, *(packed.clone() for _ in range(copies - 1))],
            backend=chosen,
            escape_rate=escape_rate,
        )
        start = 0
        for x in xs:
            rows = slice(start, start + len(x))
            yield _row(case, x, reference[rows], terms[rows])
            start += len(x)


def make_weight(n: int, k: int, generator: torch.Generator, escape_rate: float = 0.0) -> Tensor:
    """w ~ N(0, (0.3 / sqrt k)^2), BF16 [n, k], on the generator's device.

    With an escape rate nothing else lies outside the window: values below 2^-9 of the deviation
    become that, and of the weights of a tenth of the tiles so many become 0 or 2^-40.
    """
    if escape_rate == 0:
        scale = 0.3 / k**0.5
        return (
            torch.randn(n, k, generator=generator, device=generator.device).mul_(scale).bfloat16()
        )
    return make_escaping_weight(n, k, generator, escape_rate, ESCAPED_TILES)


def make_escaping_weight(
    n: int, k: int, generator: torch.Generator, escape_rate: float, tile_share: float
) -> Tensor:
    """`make_weight` with exactly the escapes asked for, none at 0, in that share of the tiles."""
    device = generator.device
    scale = 0.3 / k**0.5
    w = torch.randn(n, k, generator=generator, device=device).mul_(scale)
    least = torch.tensor(scale * 2.0**-9, device=device)
    w = torch.where(w.abs() < least, torch.copysign(least, w), w).bfloat16()
    rows, columns = -(-n // 16), -(-k // 64)
    tiles = torch.rand(rows, columns, generator=generator, device=device) < tile_share
    in_tiles = tiles.repeat_interleave(16, 0)[:n].repeat_interleave(64, 1)[:, :k]
    chance = torch.rand(n, k, generator=generator, device=device)
    hit = in_tiles & (chance < escape_rate / tile_share)
    return torch.where(hit, torch.where(w > 0, 0.0, 2.0**-40).bfloat16(), w)


@dataclass(frozen=True)
class _Case:
    """Copies of one weight, and who multiplies by it."""

    dense: list[Tensor]
    packed: list[PackedWeight]
    backend: Backend
    escape_rate: float


def _row(case: _Case, x: Tensor, reference: Tensor, terms: Tensor) -> Row:
    (m, k), n = x.shape, case.dense[0].shape[0]
    dense, ours = timing.alternate(
        (
            lambda copy: F.linear(x, case.dense[copy]),
            lambda copy: gemm(x, case.packed[copy], backend=case.backend),
        ),
        x.device,
        capturable=case.backend in GPU_BACKENDS,
    )
    error = (ours.result.double() - reference).abs()
    torch_only = case.backend is Backend.TORCH
    return Row(
        k=k,
        n=n,
        m=m,
        kernel="torch" if torch_only else select(m, n, k, x.device).kernel,
        escape_rate=case.escape_rate,
        dense_us=dense.cold_us,
        nf12_us=ours.cold_us,
        dense_warm_us=dense.warm_us,
        nf12_warm_us=ours.warm_us,
        timed_as="graph" if ours.is_graph else "calls",
        packed_bytes=case.packed[0].nbytes,
        violations=_count_outside(error, 2e-3 + 2e-3 * reference.abs()),
        violations_any_scale=_count_outside(error, gemm_bound(reference, terms, k)),
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
