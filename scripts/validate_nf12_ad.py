#!/usr/bin/env python3
"""Validates NF12's gemm on this machine: values against float64, time against dense BF16.

Times are medians in microseconds, cold (what the last-level cache held is pushed out before) and
warm; a ratio above 1 means that NF12 is faster. Violations are counted of both bounds.

Exit code 0: no violation of either bound; 1: a violation, or data that leave the bounds' range;
2: the backend is not there, with the reason, or the command line is wrong. The data and the bounds
are described in nf12/validation.py.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from itertools import chain
from pathlib import Path

import torch

import nf12
from nf12 import timing, validation

OK, VIOLATION, UNAVAILABLE = 0, 1, 2
HEADER = (
    f"{'':>12} {'':>4} {'':>12} {'cold':>10} {'':>10} {'':>6} {'warm':>10} {'':>10} {'':>6}\n"
    f"{'k x n':>12} {'m':>4} {'kernel':>12} {'dense us':>10} {'nf12 us':>10} {'ratio':>6} "
    f"{'dense us':>10} {'nf12 us':>10} {'ratio':>6} "
    f"{'violations':>10} {'rms_rel':>9} {'max|ref|':>8}"
)


def parse_shapes(text: str) -> list[tuple[int, int]]:
    shapes = []
    for shape in text.lower().split(","):
        k, _, n = shape.partition("x")
        if not (k.isdecimal() and n.isdecimal() and int(k) and int(n)):
            raise argparse.ArgumentTypeError(f"{shape!r} is no shape, write k x n as 4096x14336")
        shapes.append((int(k), int(n)))
    return shapes


def parse_tokens(text: str) -> list[int]:
    for m in text.split(","):
        if not m.isdecimal() or int(m) == 0:
            raise argparse.ArgumentTypeError(f"{m!r} is no number of tokens, m is at least 1")
    return [int(m) for m in text.split(",")]


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    shapes = " ".join(f"{k}x{n}" for k, n in validation.SHAPES)
    tokens = " ".join(map(str, validation.TOKENS))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backend", default="auto", help="auto, hip, cuda, cpu or torch")
    parser.add_argument(
        "--shapes",
        nargs="+",
        type=parse_shapes,
        metavar="KxN",
        help=f"default: {shapes} (the first {len(validation.CPU_SHAPES)} on a CPU)",
    )
    parser.add_argument(
        "--m", nargs="+", type=parse_tokens, metavar="M", help=f"tokens, default: {tokens}"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random data, default 0")
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write the result as JSON to FILE, or to standard output instead of the table",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    quiet = options.json == "-"
    try:
        device = validation.device_of(options.backend)
        backend = nf12.resolve_backend(options.backend, device)
    except (nf12.BackendUnavailable, ValueError) as error:
        print(f"validate_nf12_ad: {error}", file=sys.stderr)
        return UNAVAILABLE
    if not quiet:
        print_head(backend, device, options.seed)
    rows = []
    shapes = tuple(chain(*options.shapes)) if options.shapes else None
    tokens = tuple(chain(*options.m)) if options.m else validation.TOKENS
    try:
        for row in validation.run(backend, shapes, tokens, options.seed):
            rows.append(row)
            if not quiet:
                print(format_row(row), flush=True)
    except ValueError as error:  # a shape that NF12 leaves dense
        print(f"validate_nf12_ad: {error}", file=sys.stderr)
        return UNAVAILABLE
    if options.json:
        write_json(options.json, backend, device, options.seed, rows)
    failed = [row for row in rows if not row.passed]
    if not quiet:
        worst = max(row.max_abs_ref for row in rows)
        verdict = f"{len(failed)} of {len(rows)} FAILED" if failed else f"all {len(rows)} passed"
        print(f"{verdict}; max |ref| {worst:.3f}, must be below {validation.MAX_REFERENCE}")
    return VIOLATION if failed else OK


def print_head(backend: nf12.Backend, device: torch.device, seed: int) -> None:
    facts = nf12.info()["devices"][str(device)]
    kind = " ".join(facts[key] for key in ("name", "arch") if facts.get(key))
    print(f"backend {backend}, device {device} ({kind}), torch {torch.__version__}, seed {seed}")
    if facts["reason"]:
        print(f"no kernels: {facts['reason']}")
    print(HEADER)


def format_row(row: validation.Row) -> str:
    violations = f"{row.violations}+{row.violations_any_scale}"
    return (
        f"{f'{row.k}x{row.n}':>12} {row.m:>4} {row.kernel:>12} "
        f"{row.dense_us:>10.1f} {row.nf12_us:>10.1f} {row.ratio:>6.2f} "
        f"{row.dense_warm_us:>10.1f} {row.nf12_warm_us:>10.1f} {row.ratio_warm:>6.2f} "
        f"{violations:>10} {row.rms_rel:>9.2e} {row.max_abs_ref:>8.3f}"
    )


def write_json(
    target: str,
    backend: nf12.Backend,
    device: torch.device,
    seed: int,
    rows: list[validation.Row],
) -> None:
    result = {
        "backend": backend.value,
        "device": str(device),
        "facts": nf12.info()["devices"][str(device)],
        "flush_bytes": timing.flush_bytes(device),
        "torch": str(torch.__version__),
        "nf12": nf12.__version__,
        "date": datetime.date.today().isoformat(),
        "seed": seed,
        "passed": all(row.passed for row in rows),
        "violations": sum(row.violations + row.violations_any_scale for row in rows),
        "rows": [row.to_dict() for row in rows],
    }
    text = json.dumps(result, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text)


if __name__ == "__main__":
    sys.exit(main())
