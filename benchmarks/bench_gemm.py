"""Speed of gemm on packed weights beside torch.nn.functional.linear in BF16 and FP32.

    python benchmarks/bench_gemm.py               # writes benchmarks/results/<device>-<date>.json
    python benchmarks/bench_gemm.py --output -    # prints the table only
    python benchmarks/bench_gemm.py --m 1 8 --mode warm --threads 1

The three take turns in one process and medians are shown. Cold: consecutive calls multiply
different copies of the weight, which together exceed the last-level cache, so that weights come
from memory as they do in a model; warm: the same copy each time. The result of the last timed call
is held against float64. Beside the times stands the rate at which this machine reads memory,
measured in the same run: cold, gb_per_s (packed bytes a second) cannot exceed it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import nf12
from nf12.timing import cache_bytes
from nf12.validation import gemm_bound, gemm_reference, make_weight

SHAPES = ((4096, 4096), (4096, 14336), (896, 4864))  # k x n
TOKENS = (1, 8, 64)
ESCAPE_RATE = 3.3e-4  # of all weights, all of them in a tenth of the tiles
MIN_CALLS = 5
HEADER = (
    f"{'k x n':>12} {'m':>4} {'kernel':>12} {'bf16 us':>10} {'fp32 us':>10} {'nf12 us':>10} "
    f"{'x bf16':>7} {'x fp32':>7} {'GB/s':>7} {'of read':>7} {'violations':>10}"
)


def count_violations(y: Tensor, x: Tensor, w: Tensor) -> int:
    """Elements of y outside |err| <= ulp_bf16(ref) / 2 + (K / 16 + 1) 2^-23 sum |x w|, or outside
    2e-3 + 2e-3 |ref|, which holds for data of this scale while |ref| < 2."""
    reference, terms = gemm_reference(x, w)
    error = (y.double() - reference).abs()
    any_scale = error <= gemm_bound(reference, terms, x.shape[1])
    this_scale = (error <= 2e-3 + 2e-3 * reference.abs()) | (reference.abs() >= 2)
    return int((~(any_scale & this_scale)).sum())


def alternate(
    contenders: Sequence[Callable[[int], Tensor]], copies: int, seconds: float
) -> tuple[list[float], list[Tensor]]:
    """Median microseconds and last result of each contender; call i is on copy i % copies."""
    times: list[list[float]] = [[] for _ in contenders]
    results = [call(0) for call in contenders]
    end = time.perf_counter() + seconds
    turn = 1
    while len(times[0]) < MIN_CALLS or time.perf_counter() < end:
        for i, call in enumerate(contenders):
            start = time.perf_counter()
            results[i] = call(turn % copies)
            times[i].append((time.perf_counter() - start) * 1e6)
        turn += 1
    return [statistics.median(spent) for spent in times], results


def read_ceiling_gb_per_s() -> float:
    """Bytes a second of the fastest of ten sums over 512 MiB."""
    data = torch.ones(1 << 27)
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - start)
    return data.nbytes / best / 1e9


def bench_shape(
    k: int, n: int, tokens: list[int], ceiling: float, options: argparse.Namespace
) -> list[dict[str, object]]:
    w = make_weight(n, k, torch.Generator().manual_seed(0), ESCAPE_RATE)
    packed = nf12.pack(w)
    assert isinstance(packed, nf12.PackedWeight)
    payload, index, escapes, *integers = packed.operands
    packed_bytes = payload.nbytes + index.nbytes + escapes.nbytes
    enough = -(-2 * cache_bytes(w.device) // packed_bytes)
    copies = max(2, enough) if options.mode == "cold" else 1
    dense = [w.clone() for _ in range(copies)]
    single = [w.float() for _ in range(copies)]
    operands = [(payload.clone(), index.clone(), escapes, *integers) for _ in range(copies)]

    rows = []
    for m in tokens:
        x = torch.randn(m, k, generator=torch.Generator().manual_seed(m)).bfloat16()
        x_single = x.float()
        contenders = (
            lambda i, x=x: torch.ops.nf12.gemm(x, *operands[i]),
            lambda i, x=x: F.linear(x, dense[i]),
            lambda i, x=x_single: F.linear(x, single[i]),
        )
        kernel = nf12.select(m, n, k, "cpu").kernel
        with nf12.use_kernel(options.kernel) if options.kernel else contextlib.nullcontext():
            medians, (y, _, _) = alternate(contenders, copies, options.seconds)
        nf12_us, dense_us, fp32_us = medians
        gb_per_s = packed_bytes / nf12_us / 1e3
        row = {
            "k": k,
            "n": n,
            "m": m,
            "escape_rate": ESCAPE_RATE,
            "dense_us": round(dense_us, 1),
            "fp32_us": round(fp32_us, 1),
            "nf12_us": round(nf12_us, 1),
            "kernel": options.kernel or kernel,
            "gb_per_s": round(gb_per_s, 2),
            "violations": count_violations(y, x, w),
        }
        rows.append(row)
        print(
            f"{f'{k}x{n}':>12} {m:>4} {row['kernel']:>12} {dense_us:>10.1f} {fp32_us:>10.1f} "
            f"{nf12_us:>10.1f} {dense_us / nf12_us:>7.2f} {fp32_us / nf12_us:>7.2f} "
            f"{gb_per_s:>7.2f} {gb_per_s / ceiling:>7.0%} {row['violations']:>10}",
            flush=True,
        )
    return rows


def device_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def parse_shape(text: str) -> tuple[int, int]:
    k, _, n = text.lower().partition("x")
    if not (k.isdecimal() and n.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape, write k x n as 4096x14336")
    return int(k), int(n)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--backend", choices=["cpu"], default="cpu")
    parser.add_argument("--shapes", nargs="+", type=parse_shape, default=SHAPES, metavar="KxN")
    parser.add_argument("--m", nargs="+", type=int, default=TOKENS, help="tokens")
    parser.add_argument("--mode", choices=["cold", "warm"], default="cold")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--kernel", default="", help="one level instead of the chosen one")
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring for each row")
    parser.add_argument("--output", default="", help="a file, or - for none")
    return parser.parse_args()


@torch.inference_mode()
def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    ceiling = read_ceiling_gb_per_s()
    device = device_name()
    print(f"{device}, {options.threads} threads, {options.mode}, reads {ceiling:.1f} GB/s")
    print(HEADER)
    rows: list[dict[str, object]] = []
    for k, n in options.shapes:
        rows += bench_shape(k, n, options.m, ceiling, options)
    date = datetime.date.today().isoformat()
    report = {
        "device": device,
        "torch": str(torch.__version__),
        "nf12": nf12.__version__,
        "date": date,
        "commit": commit(),
        "mode": options.mode,
        "threads": options.threads,
        "read_gb_per_s": round(ceiling, 2),
        "rows": rows,
    }
    if options.output != "-":
        slug = "-".join(device.lower().replace("(r)", "").replace("@", "").split())
        default = Path(__file__).parent / "results" / f"{slug}-{date}.json"
        path = Path(options.output) if options.output else default
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")
        print(path)
    if any(row["violations"] for row in rows):
        raise SystemExit("values outside the bounds: the times mean nothing")


if __name__ == "__main__":
    main()
