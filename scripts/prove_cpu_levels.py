#!/usr/bin/env python3
"""Proves the CPU levels that this machine has, and keeps the record for CI, which lacks some.

    python scripts/prove_cpu_levels.py            # every level; writes docs/records/cpu-levels-*
    python scripts/prove_cpu_levels.py --table    # what is proven, where, and what is stale

Each level runs in a process of its own, forced by NF12_CPU_LEVEL and nf12.use_kernel: pack, unpack
and gather bit for bit against the specification (nf12/packing.py), gemm bit for bit where its sums
are exact and within the bound elsewhere. The record names the library by its sha256 and the sources
under csrc/format and csrc/cpu by their hash: once they change it is stale. Exit code 1 on any
difference.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs" / "records"
SOURCES = ("csrc/format", "csrc/cpu")
LEVELS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")
TOKENS = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 24, 25, 31, 33, 48, 49, 63, 64, 65, 127, 128, 129, 200)
SHAPES = ((1, 1), (15, 63), (16, 64), (17, 65), (48, 200), (33, 4104), (100, 896))  # n x k


def source_hash(folders: tuple[str, ...] = SOURCES) -> str:
    """SHA-256 over the lines "<sha256 of the file>  <path>\\n" of the folders' sources, by path."""
    files = sorted(
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".hpp", ".cpp")
    )
    lines = [
        f"{hashlib.sha256((ROOT / name).read_bytes()).hexdigest()}  {name}\n" for name in files
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_records() -> dict[str, dict[str, Any]]:
    """Record by file name."""
    paths = sorted(RECORDS.glob("cpu-levels-*.json"))
    return {path.name: json.loads(path.read_text()) for path in paths}


def states(supported: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """(level, state, evidence): tested here, proven or stale by a record, or unproven."""
    current, records = source_hash(), read_records()
    for level in LEVELS:
        if level in supported:
            yield level, "tested here", "this machine runs it"
            continue
        holding = [
            (record["source_hash"] == current, record["date"], name)
            for name, record in records.items()
            if record["levels"].get(level, {}).get("cases", 0) > 0
        ]
        if not holding:
            yield level, "unproven", "no record"
            continue
        is_current, date, name = max(holding)
        yield level, "proven" if is_current else "stale", f"docs/records/{name}, {date}"


def format_table(supported: tuple[str, ...]) -> str:
    return "\n".join(f"{level:<12} {state:<12} {how}" for level, state, how in states(supported))


# ---- one level, in its own process ---------------------------------------------------------------


class Tally:
    def __init__(self) -> None:
        self.cases = self.differences = 0

    def compare(self, what: str, wrong: int) -> None:
        self.cases += 1
        self.differences += wrong
        if wrong:
            print(f"{what}: {wrong} differences", file=sys.stderr)


def prove_level(level: str) -> dict[str, int]:
    sys.path.insert(0, str(ROOT / "tests"))
    import reference  # type: ignore[import-not-found]
    import torch

    import nf12
    from nf12 import packing

    ops, tally = torch.ops.nf12, Tally()
    threads = torch.get_num_threads()

    def differing(a: torch.Tensor, b: torch.Tensor) -> int:
        if a.dtype == torch.bfloat16:
            a, b = a.view(torch.int16), b.view(torch.int16)
        return int((a != b).sum()) if a.shape == b.shape else max(a.numel(), b.numel(), 1)

    def violations(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> int:
        wanted = reference.gemm_reference(x, w, bias)
        error = (y.double() - wanted).abs()
        same = (y.double() == wanted) | (y.isnan() & wanted.isnan())
        return int((~same & ~(error <= reference.gemm_bound(x, w, bias))).sum())

    def multiply(x: torch.Tensor, packed: Any, bias: torch.Tensor) -> torch.Tensor:
        buffer = reference.GuardedBuffer.create(x.shape[0], packed[3])
        with nf12.use_kernel(level):
            ops.gemm.out(reference.offset_rows(x), *packed, bias, out=buffer.view)
        buffer.check()
        y: torch.Tensor = buffer.view.clone()
        return y

    def pack(w: torch.Tensor) -> Any:
        payload, index, escapes, meta = ops.pack(w)
        return payload, index, escapes, *meta.tolist()[1:]

    for n, k in SHAPES:
        weights = {
            "realistic": reference.realistic_weights(n, k, tile_share=0.5),
            "special": reference.special_weights(n, k, share=0.03),
            "raw": reference.special_weights(n, k, share=0.5),
        }
        for kind, w in weights.items():
            what = f"{level} {kind} {n}x{k}"
            made, spec = ops.pack(w), packing.pack_spec(w)
            for name, a, b in zip(("payload", "index", "escapes", "meta"), made, spec, strict=True):
                tally.compare(f"{what} pack {name}", differing(a, b))
            packed = pack(w)
            tally.compare(f"{what} unpack", differing(ops.unpack(*packed), w))
            ids = torch.arange(n - 1, -1, -1)
            tally.compare(f"{what} gather", differing(ops.gather(ids, *packed), w[ids]))

        bias = reference.activations(n, seed=5)
        packed = pack(weights["realistic"])
        integers = torch.randint(-8, 8, (n, k), generator=reference.generator(3)).bfloat16()
        exact = pack(integers)
        no_bias = torch.zeros(n).bfloat16()
        for m in TOKENS:
            x = reference.activations(m, k)
            y = multiply(x, packed, bias)
            what = f"{level} gemm {m}x{n}x{k}"
            tally.compare(what, violations(y, x, weights["realistic"], bias))
            torch.set_num_threads(1)
            tally.compare(f"{what} one thread", differing(multiply(x, packed, bias), y))
            torch.set_num_threads(threads)
            x = torch.randint(-4, 5, (m, k), generator=reference.generator(m)).bfloat16()
            wanted = (x.double() @ integers.double().T).bfloat16()
            tally.compare(f"{what} exact", differing(multiply(x, exact, no_bias), wanted))
    return {"cases": tally.cases, "differences": tally.differences}


# ---- all of them ---------------------------------------------------------------------------------


def device_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def prove(supported: list[str], library: Path) -> dict[str, Any]:
    import torch

    results = {}
    for level in supported:
        done = subprocess.run(
            [sys.executable, __file__, "--level", level],
            env=os.environ | {"NF12_CPU_LEVEL": level},
            stdout=subprocess.PIPE,
            text=True,
        )
        if done.returncode != 0:
            raise SystemExit(f"prove_cpu_levels: level {level} ended with code {done.returncode}")
        results[level] = json.loads(done.stdout)
        print(
            f"{level:<12} {results[level]['cases']} cases, {results[level]['differences']} differ"
        )
    return {
        "device": device_name(),
        "cores": os.cpu_count(),
        "date": datetime.date.today().isoformat(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "library_sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        "source_hash": source_hash(),
        "sources": list(SOURCES),
        "levels": results,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--table", action="store_true", help="print what is proven and leave")
    parser.add_argument("--level", choices=LEVELS, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help="the record's path")
    options = parser.parse_args()
    if options.level:
        print(json.dumps(prove_level(options.level)))
        return 0

    import nf12

    supported = nf12.info()["cpu"]["supported"]
    if options.table:
        print(format_table(tuple(supported)))
        return 0
    library = Path(nf12.__file__).parent / "lib" / "libnf12.so"
    record = prove(supported, library)
    slug = "-".join(record["device"].lower().replace("(r)", "").replace("@", "").split())
    path = options.output or RECORDS / f"cpu-levels-{slug}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(path)
    return int(any(result["differences"] for result in record["levels"].values()))


if __name__ == "__main__":
    sys.exit(main())
