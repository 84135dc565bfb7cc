#!/usr/bin/env python3
"""The README's tables of speed-ups, from benchmarks/results.

python benchmarks/table.py        # prints them; tests/test_records.py compares the README with them
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
MACHINES = {  # result files of bench_gemm.py by device, and what the table calls it
    "Intel(R) Xeon(R) Processor": "16-core Xeon, AMX",
    "AMD EPYC": "2-core EPYC, AVX2",
}
GPUS = ("NVIDIA H200",)
GPU_TOKENS = (1, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)
ESCAPES = "3.3e-4"


def latest() -> dict[str, dict[str, Any]]:
    """The newest result of each device."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(RESULTS.glob("*.json"), key=lambda path: path.stem[-10:]):
        report = json.loads(path.read_text())
        rows = report["rows"]
        if report.get("mode") != "cold" or "dense_us" not in rows[0]:
            continue
        if not any(row.get("escapes", ESCAPES) == ESCAPES for row in rows):
            continue
        found[report["device"]] = report
    return found


def table() -> str:
    reports = latest()
    columns = [(device, m) for device in MACHINES for m in (1, 8, 64)]
    cells: dict[tuple[int, int], list[str]] = {}
    for device, m in columns:
        for row in reports[device]["rows"]:
            if row["m"] == m and row.get("escapes", ESCAPES) == ESCAPES:
                assert row["violations"] == 0
                speed_up = row["dense_us"] / row["nf12_us"]
                cells.setdefault((row["k"], row["n"]), []).append(f"{speed_up:.2f}")
    head = [f"{MACHINES[device]}: m = {m}" if m == 1 else f"m = {m}" for device, m in columns]
    lines = [["k x n", *head], ["---"] + ["---:"] * len(columns)]
    lines += [[f"{k} x {n}", *values] for (k, n), values in cells.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def gpu_tables() -> dict[str, str]:
    """By device, of those that there are results of."""
    reports = latest()
    return {device: _gpu_table(reports[device]["rows"]) for device in GPUS if device in reports}


def _gpu_table(rows: list[dict[str, Any]]) -> str:
    ratios: dict[tuple[int, int], dict[int, float]] = {}
    for row in rows:
        if row["escapes"] == ESCAPES and row["m"] in GPU_TOKENS:
            assert row["violations"] == 0
            shape = ratios.setdefault((row["k"], row["n"]), {})
            shape[row["m"]] = row["dense_us"] / row["nf12_us"]
    tokens = [m for m in GPU_TOKENS if all(m in shape for shape in ratios.values())]
    lines = [["k x n", *(f"m = {m}" for m in tokens)], ["---"] + ["---:"] * len(tokens)]
    for (k, n), shape in ratios.items():
        lines.append([f"{k} x {n}", *(f"{shape[m]:.2f}" for m in tokens)])
    geomeans = (
        math.prod(shape[m] for shape in ratios.values()) ** (1 / len(ratios)) for m in tokens
    )
    lines.append(["geomean", *(f"**{value:.2f}**" for value in geomeans)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    for text in (table(), *gpu_tables().values()):
        print(text, end="\n\n")
