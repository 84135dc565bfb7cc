#!/usr/bin/env python3
"""Runs the shipped gfx1201 machine code on an RDNA4 instruction emulator, and keeps the record.

    TINYGRAD=checkout python scripts/prove_rdna4.py    # writes docs/records/emulator-gfx1201.json

The emulator is in the test tree of a tinygrad checkout. Every fused token count, the matrix
kernels, unpack, gather, pack and check, on small shapes with tails, lists and raw tiles, against
the reference. The record names the code objects by their sha256: a build whose objects differ makes
it stale. Exit code 1 if a test fails, 2 without the emulator.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]
import code_objects  # noqa: E402
from prove_operators import RECORDS, run_tests  # noqa: E402

TARGET = "gfx1201"
TESTS = ("rdna4/test_fused.py", "rdna4/test_matrix.py", "rdna4/test_whole_weight.py")
UNITS = ("gemm_fused", "gemm_matrix", "gemm_combine", "unpack", "gather", "pack", "check")


def object_hashes() -> dict[str, str]:
    """sha256 of each code object of TARGET, by unit."""
    return {
        unit: hashlib.sha256(code_objects.path(TARGET, unit).read_bytes()).hexdigest()
        for unit in UNITS
    }


def record() -> dict[str, Any]:
    return {
        "target": TARGET,
        "date": datetime.date.today().isoformat(),
        "code_objects": object_hashes(),
        "files": list(TESTS),
        "counts": {name: run_tests((name,)) for name in TESTS},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = RECORDS / f"emulator-{TARGET}.json"
    parser.add_argument("--output", type=Path, default=default, help="the record's path")
    options = parser.parse_args()
    if not os.environ.get("TINYGRAD"):
        print("prove_rdna4: TINYGRAD is not set to a tinygrad checkout", file=sys.stderr)
        return 2
    made = record()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(made, indent=1) + "\n")
    print(options.output, made["counts"])
    failed = sum(
        counts[outcome]
        for counts in made["counts"].values()
        for outcome in ("failures", "errors", "skipped")
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
