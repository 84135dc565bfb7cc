#!/usr/bin/env python3
"""Runs the operator tests with another torch or Python, and keeps the record.

    python scripts/prove_operators.py      # writes docs/records/operators-torch<v>-python<v>.json

The library is one file for every torch from 2.11 on and every Python; CI has one pair of versions.
The record names the library by its sha256 and the sources under csrc by their hash: once these
change it is stale, and CI says so. Exit code 1 if a test fails.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs" / "records"
sys.path.insert(0, str(ROOT / "scripts"))
import prove_cpu_levels as levels  # noqa: E402

SOURCES = ("csrc",)
TESTS = ("test_ops.py", "test_registration.py", "test_errors.py", "test_gemm.py")


def run_tests(names: tuple[str, ...]) -> dict[str, int]:
    """Counts of pytest over the files `names` of tests/."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *names]
        subprocess.run([sys.executable, *command], cwd=ROOT / "tests", check=False)
        suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    counts = {
        name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
    }
    counts["passed"] = counts["tests"] - sum(counts[n] for n in ("failures", "errors", "skipped"))
    return counts


def record() -> dict[str, Any]:
    import torch

    import nf12

    library = Path(nf12.__file__).parent / "lib" / "libnf12.so"
    return {
        "device": levels.device_name(),
        "date": datetime.date.today().isoformat(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "library_sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        "source_hash": levels.source_hash(SOURCES),
        "sources": list(SOURCES),
        "files": list(TESTS),
        "counts": run_tests(TESTS),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, help="the record's path")
    options = parser.parse_args()
    made = record()
    versions = (made["torch"].split("+")[0], ".".join(made["python"].split(".")[:2]))
    path = options.output or RECORDS / "operators-torch{}-python{}.json".format(*versions)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1) + "\n")
    print(path, made["counts"])
    return int(bool(made["counts"]["failures"] or made["counts"]["errors"]))


if __name__ == "__main__":
    sys.exit(main())
