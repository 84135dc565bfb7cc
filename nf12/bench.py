"""Speed of gemm on packed weights beside dense BF16, with the values checked in the same run.

What `nf12 bench`, `nf12 tune` and benchmarks/bench_gemm.py measure with. The contenders take turns
in one process and medians count. Cold: consecutive calls multiply by different copies of the
weight, which together exceed the last-level cache twice, so that weights come from memory as they
do in a model; warm: the same copy each time. On a GPU a turn is one replay of a graph of calls.

The result of the last timed call is held against float64 by both bounds of nf12.validation: all
rows of x up to CHECKED_ROWS, of more that many, spread over x, the first and the last among them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nf12.backend import GPU_BACKENDS, Backend, introspection
from nf12.functional import AUTO_KERNEL, gemm_operands, kernel_or_choice, select
from nf12.packed_weight import PackedWeight
from nf12.packing import pack_spec
from nf12.timing import Call, Rotation, cache_bytes, rotate
from nf12.validation import (
    ESCAPED_TILES,
    SHAPES,
    gemm_bound,
    gemm_reference,
    make_escaping_weight,
)

CPU_SHAPES = ((4096, 4096), (4096, 14336), (896, 4864))  # k x n
CPU_TOKENS = (1, 8, 64)
GPU_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
USUAL_ESCAPES = "3.3e-4"
RAW = "raw"

CHECKED_ROWS = 64
TURNS = {"cpu": 5, "cuda": 11}  # at least
_LISTED_EVERYWHERE = 1e-3  # from this rate on escapes are in all tiles, as in a tied head
_RAW_RATE = 0.15  # 154 a tile, where 64 fit a list
_TURN_US, _MOST_CALLS = 400, 64  # of a graph: the host must be ahead, the gaps between graphs small
_DENSE_BYTES_PER_US, _DENSE_FLOP_PER_US = 4e6, 7e8  # guesses that only the length of a graph needs
_MEMORY_SHARE = 0.6  # of what is free, for copies of a weight


@dataclass(frozen=True)
class Row:
    """One weight and token count."""

    k: int
    n: int
    m: int
    escapes: str  # as asked for
    escape_rate: float  # of the weights of this run, those of raw tiles included
    base: int
    kernel: str
    dense_us: float  # BF16
    fp32_us: float | None  # CPUs
    nf12_us: float
    nf12_us_plain: float | None  # NVIDIA: without programmatic dependent launch
    timed_as: str  # "graph" or "calls"
    copies: int
    gb_per_s: float  # packed bytes a second
    violations: int
    checked_rows: int  # of x

    @property
    def ratio(self) -> float:
        """Dense time over NF12 time: above 1 NF12 is faster."""
        return self.dense_us / self.nf12_us

    def to_dict(self) -> dict[str, Any]:
        """The fields that this device has, times with a digit more than they repeat to."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        digits = {"escape_rate": 8, "gb_per_s": 2} | dict.fromkeys(
            ("dense_us", "fp32_us", "nf12_us", "nf12_us_plain"),
            3 if self.timed_as == "graph" else 1,
        )
        return {name: round(v, digits[name]) if name in digits else v for name, v in fields.items()}


@dataclass(frozen=True)
class Refusal:
    """What takes a row's place where the kernel that was asked for by name does not take it."""

    k: int
    n: int
    m: int
    reason: str


@dataclass(frozen=True)
class Summary:
    """All shapes at one token count."""

    escapes: str
    m: int
    geomean: float
    worst: float
    worst_shape: tuple[int, int]
    geomean_plain: float | None


@dataclass(frozen=True)
class Weight:
    """One weight, dense and packed, in as many copies as its mode wants."""

    k: int
    n: int
    escapes: str
    backend: Backend
    escape_rate: float
    dense: list[Tensor]
    packed: list[PackedWeight]
    single: list[Tensor]  # FP32, on CPUs

    @property
    def device(self) -> torch.device:
        return self.dense[0].device


def default_shapes(device: torch.device) -> tuple[tuple[int, int], ...]:
    return SHAPES if device.type == "cuda" else CPU_SHAPES


def default_tokens(device: torch.device) -> tuple[int, ...]:
    return GPU_TOKENS if device.type == "cuda" else CPU_TOKENS


# ---- weights -------------------------------------------------------------------------------------


def make_weight(
    k: int,
    n: int,
    escapes: str,
    device: torch.device,
    backend: Backend,
    *,
    cold: bool,
    single: bool | None = None,
) -> Weight:
    """A random weight [n, k], packed on its device, with its copies.

    escapes: a rate, or "raw" for tiles that are all raw; ValueError for anything else. single:
    whether with FP32 copies, by default on CPUs.
    """
    rate, tile_share = escape_pattern(escapes)
    single = device.type == "cpu" if single is None else single
    generator = torch.Generator(device).manual_seed(0)
    w = make_escaping_weight(n, k, generator, rate, tile_share)
    packed = _pack(w, backend)
    copies = _copies(w, packed) if cold else 1
    dense = [w, *(w.clone() for _ in range(copies - 1))]
    return Weight(
        k,
        n,
        escapes,
        backend,
        escape_rate=packed.num_escapes / w.numel(),
        dense=dense,
        packed=[packed, *(packed.clone() for _ in range(copies - 1))],
        single=[w.float() for w in dense] if single else [],
    )


def escape_pattern(escapes: str) -> tuple[float, float]:
    """Rate of escapes and the share of the tiles that hold them all."""
    if escapes == RAW:
        return _RAW_RATE, 1.0
    try:
        rate = float(escapes)
    except ValueError:
        rate = math.nan
    if not 0 <= rate <= 0.05:
        raise ValueError(f"nf12: escapes {escapes!r}: {RAW!r}, or a rate from 0 to 0.05")
    return rate, 1.0 if rate >= _LISTED_EVERYWHERE else ESCAPED_TILES


def _pack(w: Tensor, backend: Backend) -> PackedWeight:
    """Also where the result is larger than the weight, as raw tiles are."""
    payload, index, escapes, meta = (
        pack_spec(w) if backend is Backend.TORCH else torch.ops.nf12.pack(w, -1)
    )
    _, n, k, base = meta.tolist()
    return PackedWeight.trusted(payload, index, escapes, n, k, base)


def _copies(w: Tensor, packed: PackedWeight) -> int:
    copies = max(2, -(-2 * cache_bytes(w.device) // packed.nbytes))
    if w.device.type != "cuda":
        return copies
    free_bytes, _ = torch.cuda.mem_get_info(w.device)
    return max(1, min(copies, int(free_bytes * _MEMORY_SHARE) // (w.nbytes + packed.nbytes)))


# ---- measuring -----------------------------------------------------------------------------------


def run(
    device: torch.device,
    backend: Backend,
    shapes: Sequence[tuple[int, int]],
    tokens: Sequence[int],
    *,
    escapes: Sequence[str] = (USUAL_ESCAPES,),
    cold: bool = True,
    kernel: str = AUTO_KERNEL,
    seconds: float = 0.0,
) -> Iterator[Row | Refusal]:
    """Measures every shape (k, n) with every kind of escapes and every m."""
    for k, n in shapes:
        for kind in escapes:
            weight = make_weight(k, n, kind, device, backend, cold=cold)
            for m in tokens:
                yield measure(weight, m, kernel=kernel, seconds=seconds)


def measure(
    weight: Weight, m: int, *, kernel: str = AUTO_KERNEL, seconds: float = 0.0
) -> Row | Refusal:
    """Times x [m, k] times the weight, dense and packed."""
    try:
        return _measure(weight, m, kernel, seconds)
    except ValueError as error:
        if not str(error).startswith(f"nf12::gemm: kernel {kernel} "):
            raise
        return Refusal(weight.k, weight.n, m, str(error).splitlines()[0])


def _measure(weight: Weight, m: int, kernel: str, seconds: float) -> Row:
    device, packed = weight.device, weight.packed
    on_gpu = device.type == "cuda"
    x = make_tokens(m, weight.k, device)
    contenders: list[Call] = [_dense(x, weight.dense), ours(x, weight, kernel)]
    if weight.backend is Backend.CUDA:
        contenders.append(plain(contenders[1]))
    if weight.single:
        x_single = x.float()
        contenders.append(lambda copy: F.linear(x_single, weight.single[copy]))
    times = rotate(
        contenders,
        len(packed),
        device,
        calls_per_turn=calls_per_turn(weight, m) if on_gpu else 1,
        turns=TURNS[device.type],
        seconds=seconds,
        capturable=weight.backend in GPU_BACKENDS,
    )
    dense, nf12, *rest = times
    plain_form = rest[0] if weight.backend is Backend.CUDA else None
    checked = [nf12, plain_form] if plain_form else [nf12]
    return Row(
        k=weight.k,
        n=weight.n,
        m=m,
        escapes=weight.escapes,
        escape_rate=weight.escape_rate,
        base=packed[0].base,
        kernel=_kernel_name(weight, m, kernel),
        dense_us=dense.us,
        fp32_us=times[-1].us if weight.single else None,
        nf12_us=nf12.us,
        nf12_us_plain=plain_form.us if plain_form else None,
        timed_as="graph" if nf12.is_graph else "calls",
        copies=len(packed),
        gb_per_s=packed[0].nbytes / nf12.us / 1e3,
        violations=count_violations(x, weight.dense[0], checked),
        checked_rows=min(m, CHECKED_ROWS),
    )


def make_tokens(m: int, k: int, device: torch.device) -> Tensor:
    """x ~ N(0, 1), BF16 [m, k], the same for the same m."""
    generator = torch.Generator(device).manual_seed(m)
    return torch.randn(m, k, generator=generator, device=device).bfloat16()


def ours(x: Tensor, weight: Weight, kernel: str = AUTO_KERNEL) -> Call:
    """The packed product as a contender of nf12.timing."""
    operands = [packed.operands for packed in weight.packed]

    def call(copy: int) -> Tensor:
        with kernel_or_choice(kernel):
            return gemm_operands(x, operands[copy], None, weight.backend)

    return call


def _dense(x: Tensor, dense: Sequence[Tensor]) -> Call:
    if x.device.type == "cuda":
        transposed = [w.t() for w in dense]
        return lambda copy: torch.mm(x, transposed[copy])
    return lambda copy: F.linear(x, dense[copy])


def plain(call: Call) -> Call:
    """The same contender without programmatic dependent launch."""

    def launch(copy: int) -> Tensor:
        with plain_launch():
            return call(copy)

    return launch


@contextlib.contextmanager
def plain_launch() -> Iterator[None]:
    """Inside, kernels of this process start only when the one before has ended."""
    c = introspection()
    before = c.dependent_launch()
    c.set_dependent_launch(False)
    try:
        yield
    finally:
        c.set_dependent_launch(before)


def _kernel_name(weight: Weight, m: int, kernel: str) -> str:
    if weight.backend is Backend.TORCH:
        return "torch"
    return kernel if kernel != AUTO_KERNEL else select(m, weight.n, weight.k, weight.device).kernel


def calls_per_turn(weight: Weight, m: int) -> int:
    """Of a graph: every copy, and enough calls of a small product to fill its time."""
    weights, copies = weight.n * weight.k, len(weight.dense)
    dense_us = max(2 * weights / _DENSE_BYTES_PER_US, 2 * m * weights / _DENSE_FLOP_PER_US)
    calls = min(max(1, round(_TURN_US / dense_us)), _MOST_CALLS)
    return copies * -(-calls // copies)


def count_violations(x: Tensor, w: Tensor, results: Iterable[Rotation]) -> int:
    """Elements of the checked rows outside |err| <= ulp_bf16(ref) / 2 + (K / 16 + 1) 2^-23
    sum |x w|, or outside 2e-3 + 2e-3 |ref|, which holds for data of this scale while |ref| < 2."""
    m = x.shape[0]
    rows = torch.linspace(0, m - 1, min(m, CHECKED_ROWS), device=x.device).round().long()
    reference, terms = gemm_reference(x[rows], w)
    any_scale = gemm_bound(reference, terms, x.shape[1])
    this_scale = 2e-3 + 2e-3 * reference.abs()
    beyond = reference.abs() >= 2
    count = 0
    for result in results:
        error = (result.result[rows].double() - reference).abs()
        count += int((~((error <= any_scale) & ((error <= this_scale) | beyond))).sum())
    return count


# ---- what comes out ------------------------------------------------------------------------------


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """For each kind of escapes and m, as they come, the ratios of all shapes in one line."""
    summaries = []
    for escapes, m in dict.fromkeys((row.escapes, row.m) for row in rows):
        group = [row for row in rows if (row.escapes, row.m) == (escapes, m)]
        worst = min(group, key=lambda row: row.ratio)
        plain = [row.dense_us / row.nf12_us_plain for row in group if row.nf12_us_plain]
        summaries.append(
            Summary(
                escapes,
                m,
                _geomean([row.ratio for row in group]),
                worst.ratio,
                (worst.k, worst.n),
                _geomean(plain) if plain else None,
            )
        )
    return summaries


def _geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
