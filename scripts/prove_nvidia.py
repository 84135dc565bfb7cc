#!/usr/bin/env python3
"""Proof that the GPU kernels are right on a real card: the host model's tests, run there.

    python scripts/prove_nvidia.py               # builds and runs; writes docs/records/<card>.json
    python scripts/prove_nvidia.py --build-only  # where there is nvcc but no card
    python scripts/prove_nvidia.py --run-only    # where there is a card: the build came along

The kernels of csrc/*/instances, compiled by nvcc, run over every case of tests/host_model: each
launch between guard zones, then under compute-sanitizer with memcheck, every buffer an allocation
of its own, and with racecheck. Where racecheck finds a race in nvidia_barrier_test too, which has
none, it does not follow barriers that count arrivals: what it says of kernels that use them is then
listed apart and counts for nothing (the host model does follow them).

The record names the sources that the compiler read by their hash; once one of them changes it is
stale. Exit code 1 on any difference, hazard or error.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs" / "records"
BUILD = ROOT / "build" / "nvidia"
MACHINE_TEST = "nvidia_machine_test"  # faults on purpose: nothing for a sanitizer
BARRIER_TEST = "nvidia_barrier_test"  # a copy that such a barrier orders
USE_BARRIERS = ("nvidia_cluster_test", "nvidia_warpgroup_test", "nvidia_wide_test")
SANITIZERS = ("memcheck", "racecheck")
LIMIT_S = 150  # of one program; a kernel that hangs must not hang the proof
TOO_LATE = 124  # what `timeout` answers then
NOTHING_LAUNCHED = "Target application terminated before first instrumented API call"


def files_hash(files: Iterable[str]) -> str:
    """SHA-256 over the lines "<sha256 of the file>  <path>\\n", by path; "" if one is missing."""
    lines = []
    for name in sorted(files):
        path = ROOT / name
        if not path.exists():
            return ""
        lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def programs() -> list[str]:
    """Those that a sanitizer may watch."""
    names = sorted(path.name for path in (BUILD / "bin").glob("nvidia_*_test"))
    return [name for name in names if name != MACHINE_TEST]


def read_records() -> dict[str, dict[str, Any]]:
    """Record by file name."""
    return {path.name: json.loads(path.read_text()) for path in RECORDS.glob("nvidia-*.json")}


# ---- build ---------------------------------------------------------------------------------------


def compiled_sources() -> list[str]:
    """What nvcc read of this repository to make the cubins, as its dependency files say."""
    found = set()
    for path in (BUILD / "bin").glob("*.cubin.d"):
        for word in path.read_text().replace("\\\n", " ").split():
            if (source := Path(word.rstrip(":"))).is_relative_to(ROOT / "csrc"):
                found.add(source.relative_to(ROOT).as_posix())
    return sorted(found)


def build() -> None:
    source = ROOT / "tests" / "nvidia"
    subprocess.run(["cmake", "-S", source, "-B", BUILD, "-G", "Ninja"], check=True)
    subprocess.run(["cmake", "--build", BUILD, "-j", str(os.cpu_count())], check=True)
    nvcc = subprocess.run(["nvcc", "--version"], check=True, capture_output=True, text=True).stdout
    sources = compiled_sources()
    built = {
        "compiler": "nvcc " + re.search(r"V([\d.]+)", nvcc)[1],  # type: ignore[index]
        "source_hash": files_hash(sources),
        "sources": sources,
    }
    (BUILD / "built.json").write_text(json.dumps(built, indent=1) + "\n")


# ---- run -----------------------------------------------------------------------------------------


def run_program(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    start = time.monotonic()
    done = subprocess.run(
        ["timeout", str(LIMIT_S), *command],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(f"{' '.join(command)}: code {done.returncode}, {time.monotonic() - start:.1f} s")
    return done.returncode, done.stdout


def run_all(
    jobs: Sequence[tuple[str, ...]], prefix: Sequence[str], environment: dict[str, str]
) -> list[tuple[str, int, str]]:
    """(program, exit code, output) of each job: a program and the tests to run of it. As many at
    once as there are processors: they compute what they expect."""

    def run(job: tuple[str, ...]) -> tuple[str, int, str]:
        program, *tests = job
        return program, *run_program([*prefix, str(BUILD / "bin" / program), *tests], environment)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(run, jobs))


def run_plain() -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Launches compared, kernel by kernel, and how many tests failed; and all tests that a
    sanitizer may watch."""
    launches: dict[str, int] = {}
    tests = failed = 0
    names = []
    for program, code, output in run_all([(name,) for name in (*programs(), MACHINE_TEST)], [], {}):
        summary = re.search(r"(\d+) of (\d+) tests passed", output)
        if code != 0 or summary is None:
            print(output)
        tests += int(summary[2]) if summary else 0
        failed += int(summary[2]) - int(summary[1]) if summary else 1
        if program == MACHINE_TEST:
            continue
        names += [
            (program, test) for test in re.findall(r"^(?:ok  |FAIL) (\w+)$", output, re.MULTILINE)
        ]
        for kernel, count in re.findall(r"^launches (\w+) (\d+)$", output, re.MULTILINE):
            if program != BARRIER_TEST:
                launches[kernel] = launches.get(kernel, 0) + int(count)
    return {"tests": tests, "failed": failed, "cases": dict(sorted(launches.items()))}, names


def run_sanitizer(tool: str, tests: list[tuple[str, str]]) -> dict[str, Any]:
    """Errors that compute-sanitizer found in each program, or the reason why it did not run; tests
    that launch nothing are nothing to it, and those that it did not end in time are named."""
    # Errors of calls are the programs' own business: they look for a kernel in each cubin.
    sanitizer = ("compute-sanitizer", "--tool", tool, "--report-api-errors", "no")
    errors = dict.fromkeys(programs(), 0)
    late = []
    results = run_all(tests, sanitizer, {"NF12_SEPARATE_ALLOCATIONS": "1"})
    for (_, test), (program, code, output) in zip(tests, results, strict=True):
        summary = re.search(r"(?:ERROR SUMMARY: |hazards? displayed \()(\d+) error", output)
        passed = "1 of 1 tests passed" in output
        if passed and NOTHING_LAUNCHED in output:
            continue
        if code == TOO_LATE:
            late.append(f"{program} {test}")
            continue
        if code != 0 or summary is None or not passed or summary[1] != "0":
            print(output[-6000:])
        if summary is None or not passed:
            return {"ran": False, "why": output.strip().splitlines()[-1] if output else "no output"}
        errors[program] += int(summary[1])
    found: dict[str, Any] = {"ran": True, "errors": errors}
    if late:
        found["not_in_time"] = late
    if errors.get(BARRIER_TEST, 0) > 0:
        found["barriers_not_followed"] = {n: errors.pop(n) for n in (BARRIER_TEST, *USE_BARRIERS)}
    return found


def card() -> dict[str, str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, check=True, capture_output=True, text=True)
    name, driver = done.stdout.splitlines()[0].split(", ")
    return {"card": name, "driver": driver}


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--run-only", action="store_true")
    parser.add_argument("--output", type=Path, help="the record's path")
    options = parser.parse_args()
    if not options.run_only:
        build()
    if options.build_only:
        return 0
    record: dict[str, Any] = card()
    record["date"] = datetime.date.today().isoformat()
    record |= json.loads((BUILD / "built.json").read_text())
    slug = "-".join(record["card"].lower().split())
    path = options.output or RECORDS / f"{slug}.json"
    path.parent.mkdir(parents=True, exist_ok=True)

    def write() -> None:
        path.write_text(json.dumps(record, indent=1) + "\n")

    results, tests = run_plain()
    record |= results
    unfinished: dict[str, Any] = {"ran": False, "why": "the run was ended before"}
    record["sanitizer"] = dict.fromkeys(SANITIZERS, unfinished)
    write()  # whatever ends the sanitizers, what is known by now stays
    with ThreadPoolExecutor(len(SANITIZERS)) as pool:
        found_by = list(pool.map(lambda tool: run_sanitizer(tool, tests), SANITIZERS))
    record["sanitizer"] = dict(zip(SANITIZERS, found_by, strict=True))
    write()
    print(json.dumps({k: v for k, v in record.items() if k != "sources"}, indent=1))
    sanitized = record["sanitizer"].values()
    found = any(any(result["errors"].values()) for result in sanitized if result["ran"])
    return int(record["failed"] > 0 or found)


if __name__ == "__main__":
    sys.exit(main())
