"""Everything that tells how the kernels do on a machine, as one JSON document: what to send along
with a problem, and how the owner of a card tells what its makers could not measure."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

import nf12
from nf12 import timing, validation
from nf12.backend import GPU_BACKENDS, unavailable_reason
from nf12.selftest.checks import Result

BENCH_TOKENS = (1, 8, 64)
BENCH_ESCAPE_RATE = 3.3e-4
_BENCH_FIELDS = (
    "k", "n", "m", "escape_rate", "dense_us", "nf12_us", "kernel", "gb_per_s", "violations",
)  # fmt: skip


def make_report(
    results: Sequence[Result], progress: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """The results, then what takes its time: validation and benchmark of every backend here.

    Keys: passed, results, subnormals (target -> case -> kept or flushed), validate and bench
    (backend -> device, flush_bytes, rows), info (`nf12.info()`), machine. `bench` is cold, with the
    escapes of a real model.
    """
    backends = list(_backends())
    validated = {b: _rows(b, validation.TOKENS, 0.0, progress) for b in backends}
    benched = {b: _rows(b, BENCH_TOKENS, BENCH_ESCAPE_RATE, progress) for b in backends}
    rows = [row for part in (validated, benched) for rows in part.values() for row in rows]
    return {
        "passed": all(r.passed for r in results) and all(row.passed for row in rows),
        "results": [asdict(result) for result in results],
        "subnormals": {r.target: r.facts for r in results if r.check == "subnormals"},
        "validate": {b.value: _section(b, [r.to_dict() for r in validated[b]]) for b in backends},
        "bench": {
            b.value: _section(b, [{f: row.to_dict()[f] for f in _BENCH_FIELDS} for row in rows])
            for b, rows in benched.items()
        },
        "info": nf12.info(),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
    }


def _backends() -> Iterator[nf12.Backend]:
    """Those with kernels here, and torch for GPUs that have none."""
    usable = [b for b in (*GPU_BACKENDS, nf12.Backend.CPU) if unavailable_reason(b) is None]
    yield from usable
    if torch.cuda.is_available() and not set(usable) & set(GPU_BACKENDS):
        yield nf12.Backend.TORCH


def _rows(
    backend: nf12.Backend,
    tokens: tuple[int, ...],
    escape_rate: float,
    progress: Callable[[str], None],
) -> list[validation.Row]:
    rows = []
    for row in validation.run(backend, tokens=tokens, escape_rate=escape_rate):
        rows.append(row)
        state = "ok" if row.passed else "FAILED"
        progress(
            f"{state:6} {backend} {row.k}x{row.n} m={row.m} {row.kernel}:"
            f" {row.nf12_us:.1f} us, dense {row.dense_us:.1f}, {row.gb_per_s:.1f} GB/s"
        )
    return rows


def _section(backend: nf12.Backend, rows: list[dict[str, Any]]) -> dict[str, Any]:
    device = validation.device_of(backend)
    return {"device": str(device), "flush_bytes": timing.flush_bytes(device), "rows": rows}
