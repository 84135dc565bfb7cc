"""Measures every gemm kernel of a GPU on given shapes: what `nf12 tune` does.

Each shape and m is measured as nf12.bench does, cold, all kernels that take it in turn in one
process; one whose values are wrong is never chosen. What is measured at m counts from the m before
it on, since kernels pad tokens upwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nf12 import bench, tuned
from nf12.backend import Backend, introspection
from nf12.checkpoint.plan import make_plan
from nf12.checkpoint.source import open_checkpoint
from nf12.functional import kernels
from nf12.timing import Call, rotate
from nf12.tuned import MOST_TOKENS, Tuned

KEPT_WITHIN = 1.01  # of the best: the rules' own kernel stays, measurements differ by as much
_GOES_ON_FROM = 4096  # the largest m measured, if that large, stands for all beyond


@dataclass(frozen=True)
class Measured:
    """One shape and m: microseconds by kernel, the kernel of the rules, the one to use."""

    k: int
    n: int
    m: int
    us: dict[str, float]
    wrong: tuple[str, ...]  # kernels with values outside the bounds
    rules: str
    kernel: str

    @property
    def gain(self) -> float:
        """How many times as fast as by the rules."""
        return self.us[self.rules] / self.us[self.kernel] if self.rules in self.us else 1.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"us": {name: round(us, 3) for name, us in self.us.items()}}


def run(
    device: torch.device,
    backend: Backend,
    shapes: Sequence[tuple[int, int]],
    tokens: Sequence[int],
) -> Iterator[Measured]:
    """Measures each shape (k, n) at each m, in order. The library goes by its rules meanwhile, and
    has the user's table again once all is measured or given up."""
    index = device.index or 0
    tuned.give(device, [])
    try:
        with torch.inference_mode():
            for k, n in shapes:
                weight = bench.make_weight(
                    k, n, bench.USUAL_ESCAPES, device, backend, cold=True, single=False
                )
                for m in sorted(set(tokens)):
                    yield _measure(weight, m, index)
    finally:
        tuned.load(index)


def _measure(weight: bench.Weight, m: int, index: int) -> Measured:
    x = bench.make_tokens(m, weight.k, weight.device)
    calls = {name: bench.ours(x, weight, name) for name in kernels(weight.backend)}
    calls = {name: call for name, call in calls.items() if _takes(call, name)}
    on_gpu = weight.device.type == "cuda"
    times = rotate(
        list(calls.values()),
        len(weight.packed),
        weight.device,
        calls_per_turn=bench.calls_per_turn(weight, m) if on_gpu else 1,
        turns=bench.TURNS[weight.device.type],
        capturable=True,
    )
    named = dict(zip(calls, times, strict=True))
    wrong = tuple(
        name
        for name, time in named.items()
        if bench.count_violations(x, weight.dense[0], [time]) > 0
    )
    us = {name: time.us for name, time in named.items()}
    rules: str = introspection().select(m, weight.n, weight.k, index)
    return Measured(weight.k, weight.n, m, us, wrong, rules, _choose(us, wrong, rules))


def _takes(call: Call, kernel: str) -> bool:
    try:
        call(0)
    except ValueError as error:
        if not str(error).startswith(f"nf12::gemm: kernel {kernel} "):
            raise
        return False
    return True


def _choose(us: dict[str, float], wrong: Sequence[str], rules: str) -> str:
    right = {name: time for name, time in us.items() if name not in wrong}
    best = min(right, key=right.__getitem__, default=rules)
    if rules in right and right[rules] <= KEPT_WITHIN * right[best]:
        return rules
    return best


def table(measured: Sequence[Measured]) -> list[Tuned]:
    """The rows of a table, neighbours with one kernel as one row."""
    rows: list[Tuned] = []
    before: Measured | None = None
    for at in sorted(measured, key=lambda at: (at.n, at.k, at.m)):
        same = before is not None and (before.n, before.k) == (at.n, at.k)
        first = before.m + 1 if before is not None and same else 1
        if same and rows[-1].kernel == at.kernel:
            first = rows.pop().m_first
        rows.append(Tuned(at.n, at.k, first, at.m, at.kernel))
        before = at
    return [
        Tuned(row.n, row.k, row.m_first, MOST_TOKENS, row.kernel)
        if row.m_last >= _GOES_ON_FROM and row.m_last == _last(measured, row)
        else row
        for row in rows
    ]


def _last(measured: Sequence[Measured], row: Tuned) -> int:
    return max(at.m for at in measured if (at.n, at.k) == (row.n, row.k))


def save(device: torch.device, measured: Sequence[Measured]) -> Path:
    """Writes the table into the user's cache; the library of this process has it at once."""
    path = tuned.write(device, table(measured), [at.to_dict() for at in measured])
    tuned.load(device.index or 0)
    return path


def shapes_of_model(path: str | Path) -> list[tuple[int, int]]:
    """(k, n) of the matrices of a checkpoint, packed or dense, each once. Experts are left out:
    gemm takes a single weight. CheckpointError for what is none."""
    source = open_checkpoint(path)
    packed = source.packed_names()
    if packed:
        shapes = [source.dense_entry(name).shape for name in packed]
    else:
        shapes = [tensor.entry.shape for tensor in make_plan(source).tensors if tensor.packs]
    return list(dict.fromkeys((shape[1], shape[0]) for shape in shapes if len(shape) == 2))
