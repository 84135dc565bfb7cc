"""The shipped kernels against the reference on this very machine: `nf12 selftest`.

A binary can be wrong where a local build is right: another compiler, another processor. So every
CPU level that this processor runs is held against nf12.packing, the specification in torch
operations. Each level runs in a process of its own, because NF12_CPU_LEVEL is read once, and so
that an illegal instruction is a result like any other.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

import nf12
from nf12.packing import gather_spec, pack_spec
from nf12.validation import gemm_bound, gemm_reference

SEED = 12
LEVEL_VARIABLE = "NF12_CPU_LEVEL"
TIMEOUT_S = 120
LEVEL_PROGRAM = "from nf12.cli import selftest; selftest.print_level()"
TOKENS = (1, 2, 7, 16, 33)


@dataclass(frozen=True)
class Result:
    """One check at one level. `detail` says what was wrong, or how much was compared."""

    level: str
    check: str
    passed: bool
    detail: str
    seconds: float


def run() -> list[Result]:
    """Runs every check at every CPU level that this processor supports."""
    info = nf12.info()
    if not info["library"]["loaded"]:
        return [Result("none", "library", False, str(info["library"]["reason"]), 0.0)]
    return [result for level in info["cpu"]["supported"] for result in _run_level(level)]


def print_results(results: list[Result]) -> None:
    for result in results:
        state = "ok" if result.passed else "FAILED"
        what = f"{result.level:12} {result.check:8} {result.detail}"
        print(f"{state:6} {what} ({result.seconds:.2f} s)")
    failed = sum(not result.passed for result in results)
    print(f"{len(results)} checks, {failed} failed" if failed else f"{len(results)} checks passed")


def write_report(results: list[Result], path: Path) -> None:
    """Results, `nf12.info()` and the machine as JSON: what to send along with a problem."""
    document = {
        "passed": all(result.passed for result in results),
        "results": [asdict(result) for result in results],
        "info": nf12.info(),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


def _run_level(level: str) -> list[Result]:
    begin = time.monotonic()
    command = [sys.executable, "-c", LEVEL_PROGRAM, level]
    environment = {**os.environ, LEVEL_VARIABLE: level}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
        return [Result(**fields) for fields in json.loads(done.stdout)]
    except subprocess.SubprocessError as error:
        output = str(getattr(error, "stderr", "") or "").strip().splitlines()
        detail = "; ".join([str(error), *output[-1:]])
        return [Result(level, "process", False, detail, time.monotonic() - begin)]


def check_level(level: str) -> list[Result]:
    """Runs every check in this process, at the level that NF12_CPU_LEVEL names."""
    results = []
    for name, check in CHECKS.items():
        begin = time.monotonic()
        try:
            passed, detail = True, check(level)
        except Exception as error:  # whatever goes wrong is the result
            passed, detail = False, f"{type(error).__name__}: {error}"
        results.append(Result(level, name, passed, detail, time.monotonic() - begin))
    return results


def print_level() -> None:
    """What a level's own process runs: its results as JSON on stdout."""
    print(json.dumps([asdict(result) for result in check_level(sys.argv[1])]))


class Mismatch(Exception):
    """A kernel's answer is not the reference's."""


def _check_pack(level: str) -> str:
    count = 0
    for name, weight in _weights():
        ours = torch.ops.nf12.pack(weight)
        for tensor, ours_part, spec_part in zip(
            ("payload", "index", "escapes", "meta"), ours, pack_spec(weight), strict=True
        ):
            _require_equal(f"{name}: {tensor}", ours_part, spec_part)
        count += weight.numel()
    return f"{count} weights, bytes equal to the specification's"


def _check_unpack(level: str) -> str:
    count = 0
    for name, weight in _weights():
        operands = _packed(weight)
        torch.ops.nf12.check(*operands, nf12.packing.FORMAT_VERSION)
        _require_equal(name, _bits(torch.ops.nf12.unpack(*operands)), _bits(weight))
        count += weight.numel()
    return f"{count} weights, all 65,536 patterns among them, bit for bit"


def _check_gather(level: str) -> str:
    count = 0
    for name, weight in _weights():
        if weight.dim() == 2:
            operands = _packed(weight)
            ids = torch.arange(weight.shape[0]).flip(0)
            rows = _bits(torch.ops.nf12.gather(ids, *operands))
            _require_equal(name, rows, _bits(weight.flip(0)))
            _require_equal(f"{name}: spec", rows, _bits(gather_spec(ids, *operands)))
            count += ids.numel()
    return f"{count} rows, bit for bit"


def _check_gemm(level: str) -> str:
    count = 0
    worst = 0.0
    for name, weight in _weights():
        if weight.dim() != 2 or not bool(weight.isfinite().all()):
            continue
        operands = _packed(weight)
        n, k = weight.shape
        generator = torch.Generator().manual_seed(SEED)
        bias = torch.randn(n, generator=generator).bfloat16()
        for m in TOKENS:
            x = torch.randn(m, k, generator=generator).bfloat16()
            with nf12.use_kernel(level):
                y = torch.ops.nf12.gemm(x, *operands, bias)
            products, terms = gemm_reference(x, weight)
            reference = products + bias.double()
            bound = gemm_bound(reference, terms + bias.double().abs(), k)
            ratio = (y.double() - reference).abs() / bound
            if not bool((ratio <= 1).all()):  # a NaN is a fault too
                at = divmod(int((~(ratio <= 1)).int().argmax()), n)
                raise Mismatch(
                    f"{name}, m={m}: y{list(at)} is {y[at].item():.6g},"
                    f" {ratio[at].item():.3g} times the bound from the reference"
                )
            worst = max(worst, float(ratio.max()))
            count += y.numel()
    return f"{count} outputs, worst error {worst:.2f} of the bound"


CHECKS: dict[str, Callable[[str], str]] = {
    "pack": _check_pack,
    "unpack": _check_unpack,
    "gather": _check_gather,
    "gemm": _check_gemm,
}


def _weights() -> Iterator[tuple[str, Tensor]]:
    """Clean, listed and raw tiles, tails in both dimensions, experts, every bit pattern."""
    generator = torch.Generator().manual_seed(SEED)
    patterns = torch.arange(1 << 16).to(torch.int16)

    def ordinary(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=generator) * 0.02).bfloat16()

    yield "all patterns", patterns.view(torch.bfloat16).reshape(256, 256)
    for shape in ((64, 256), (37, 300), (1, 1), (100, 500)):
        yield f"ordinary {list(shape)}", ordinary(*shape)
    outliers = ordinary(96, 640)
    outliers.view(-1)[::997] *= 2.0**20
    outliers[:16] = 0
    yield "outliers and zeros [96, 640]", outliers
    mixed = ordinary(2, 70, 1000)
    places = torch.randperm(mixed.numel(), generator=generator)[: 1 << 16]
    mixed.view(torch.int16).view(-1)[places] = patterns
    yield "experts with all patterns [2, 70, 1000]", mixed


def _packed(weight: Tensor) -> tuple[Tensor, Tensor, Tensor, int, int, int]:
    payload, index, escapes, meta = torch.ops.nf12.pack(weight)
    _, n, k, base = meta.tolist()
    return payload, index, escapes, n, k, base


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int16)


def _require_equal(name: str, ours: Tensor, reference: Tensor) -> None:
    if ours.shape != reference.shape:
        raise Mismatch(f"{name}: shape {list(ours.shape)}, should be {list(reference.shape)}")
    differs = (ours != reference).reshape(-1)
    if bool(differs.any()):
        at = int(differs.int().argmax())
        values = ours.reshape(-1)[at].item(), reference.reshape(-1)[at].item()
        raise Mismatch(
            f"{name}: {int(differs.sum())} of {differs.numel()} differ, first at {at}:"
            f" {values[0]}, should be {values[1]}"
        )
