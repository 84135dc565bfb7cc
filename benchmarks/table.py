#!/usr/bin/env python3
"""The README's table of speed-ups, from benchmarks/results.

python benchmarks/table.py        # prints it; tests/test_records.py compares the README with it
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
MACHINES = {  # result files of bench_gemm.py by device, and what the table calls it
    "Intel(R) Xeon(R) Processor": "16-core Xeon, AMX",
    "AMD EPYC": "2-core EPYC, AVX2",
}


def latest() -> dict[str, dict[str, Any]]:
    """The newest result of each device."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(RESULTS.glob("*.json"), key=lambda path: path.stem[-10:]):
        report = json.loads(path.read_text())
        if report.get("mode") != "cold" or "dense_us" not in report["rows"][0]:
            continue
        found[report["device"]] = report
    return found


def table() -> str:
    reports = latest()
    columns = [(device, m) for device in MACHINES for m in (1, 8, 64)]
    cells: dict[tuple[int, int], list[str]] = {}
    for device, m in columns:
        for row in reports[device]["rows"]:
            if row["m"] == m and row["escape_rate"] < 1e-3:
                assert row["violations"] == 0
                speed_up = row["dense_us"] / row["nf12_us"]
                cells.setdefault((row["k"], row["n"]), []).append(f"{speed_up:.2f}")
    head = [f"{MACHINES[device]}: m = {m}" if m == 1 else f"m = {m}" for device, m in columns]
    lines = [["k x n", *head], ["---"] + ["---:"] * len(columns)]
    lines += [[f"{k} x {n}", *values] for (k, n), values in cells.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    print(table())
