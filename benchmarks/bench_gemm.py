"""Speed of gemm on packed weights beside dense BF16, on a CPU or a GPU.

    python benchmarks/bench_gemm.py                 # writes benchmarks/results/<device>-<date>.json
    python benchmarks/bench_gemm.py --backend cuda  # the same of a GPU: graphs, the eight shapes
    python benchmarks/bench_gemm.py --output -      # prints the table only
    python benchmarks/bench_gemm.py --m 1 8 --mode warm --escapes 0 3.3e-4 1e-2 raw

nf12/bench.py measures, and says how. On a CPU dense is torch.nn.functional.linear, in BF16 and in
FP32; on a GPU torch.mm in BF16, and on NVIDIA the packed product stands beside its form without
programmatic dependent launch (plain). Beside the times stands the rate at which this machine reads
memory, measured in the same run: cold, gb_per_s (packed bytes a second) cannot exceed it.
Exit code 1 if a value lies outside the bounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import nf12
from nf12 import bench, machine
from nf12.bench import Row
from nf12.validation import device_of

RESULTS = Path(__file__).parent / "results"
HEADER = (
    f"{'k x n':>12} {'m':>4} {'escapes':>7} {'kernel':>12} {'dense us':>10} {'other us':>10} "
    f"{'nf12 us':>10} {'ratio':>6} {'GB/s':>7} {'of read':>7} {'violations':>10}"
)


def format_row(row: Row, ceiling: float) -> str:
    other_us = row.fp32_us or row.nf12_us_plain or float("nan")
    return (
        f"{f'{row.k}x{row.n}':>12} {row.m:>4} {row.escapes:>7} {row.kernel:>12} "
        f"{row.dense_us:>10.1f} {other_us:>10.1f} {row.nf12_us:>10.1f} {row.ratio:>6.2f} "
        f"{row.gb_per_s:>7.1f} {row.gb_per_s / ceiling:>7.0%} {row.violations:>10}"
    )


def format_summary(summary: bench.Summary) -> str:
    plain = f", plain {summary.geomean_plain:.3f}" if summary.geomean_plain else ""
    k, n = summary.worst_shape
    return (
        f"escapes {summary.escapes:>7}  m {summary.m:>4}: geomean {summary.geomean:.3f}{plain}, "
        f"worst {summary.worst:.3f} at {k}x{n}"
    )


def commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def result_path(prefix: str, device: str, suffix: str, date: str) -> Path:
    """benchmarks/results/amd-epyc-2026-11-29.json."""
    slug = "-".join(device.lower().replace("(r)", "").replace("@", "").split())
    return RESULTS / f"{prefix}{slug}{suffix}-{date}.json"


def write(report: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(path)


def parse_shape(text: str) -> tuple[int, int]:
    k, _, n = text.lower().partition("x")
    if not (k.isdecimal() and n.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape, write k x n as 4096x14336")
    return int(k), int(n)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--backend", choices=["cpu", "cuda", "hip"], default="cpu")
    parser.add_argument("--shapes", nargs="+", type=parse_shape, metavar="KxN")
    parser.add_argument("--m", nargs="+", type=int, help="tokens")
    parser.add_argument(
        "--escapes",
        nargs="+",
        default=[bench.USUAL_ESCAPES],
        help="rates, or raw: in a tenth of the tiles, from 1e-3 on in all",
    )
    parser.add_argument("--mode", choices=["cold", "warm"], default="cold")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--kernel", default="auto", help="one by name instead of the chosen one")
    parser.add_argument("--seconds", type=float, help="of each row at least; a CPU: 2, a GPU: 0")
    parser.add_argument("--output", default="", help="a file, or - for none")
    return parser.parse_args(arguments)


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    torch.set_num_threads(options.threads)
    device = device_of(options.backend)
    try:
        backend = nf12.resolve_backend(options.backend, device)
    except nf12.BackendUnavailable as error:
        raise SystemExit(str(error)) from None
    on_cpu = device.type == "cpu"
    report = machine.describe(device, backend, cold=options.mode == "cold")
    ceiling = report["read_gb_per_s"]
    others = "FP32" if on_cpu else "nf12 plain"
    print(f"{report['device']}, {report['mode']}, reads {ceiling:.1f} GB/s; other: {others}")
    print(HEADER)
    rows = []
    for row in bench.run(
        device,
        backend,
        options.shapes or bench.default_shapes(device),
        options.m or bench.default_tokens(device),
        escapes=options.escapes,
        cold=options.mode == "cold",
        kernel=options.kernel,
        seconds=(2.0 if on_cpu else 0.0) if options.seconds is None else options.seconds,
    ):
        if isinstance(row, bench.Refusal):
            print(f"{f'{row.k}x{row.n}':>12} {row.m:>4} {row.reason}")
            continue
        rows.append(row)
        print(format_row(row, ceiling), flush=True)
    for summary in bench.summarise(rows):
        print(format_summary(summary))
    if options.output != "-":
        report |= {"commit": commit(), "rows": [row.to_dict() for row in rows]}
        suffix = "" if options.mode == "cold" else "-warm"
        default = result_path("", report["device"], suffix, report["date"])
        write(report, Path(options.output) if options.output else default)
    if any(row.violations for row in rows):
        raise SystemExit("values outside the bounds: the times mean nothing")


if __name__ == "__main__":
    main()
