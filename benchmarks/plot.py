#!/usr/bin/env python3
"""The pictures of the README, from result files of bench_gemm.py.

    python benchmarks/plot.py benchmarks/results/nvidia-h200-2026-11-30.json    # into docs/

speed-up.svg: dense time over NF12 time against m, a line for each shape, their geomean on top.
bytes.svg: bytes of weights a second, dense and packed, against what the machine reads at best.
Both show the escapes of trained models and nothing whose values were not right; needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
ESCAPES = "3.3e-4"
PACKED, DENSE, INK = "#3b6ea8", "#b9b9b9", "#333333"
Shape = tuple[int, int]


def read(paths: Sequence[Path]) -> dict[str, Any]:
    """The head of the last file and the rows of all; a later file's row counts. SystemExit for
    files of several machines, warm ones, and rows with violations."""
    reports = [json.loads(path.read_text()) for path in paths]
    if len({report["device"] for report in reports}) > 1:
        raise SystemExit("plot: the files are of several machines")
    rows: dict[tuple[int, int, int], dict[str, Any]] = {}
    for path, report in zip(paths, reports, strict=True):
        if report["mode"] != "cold":
            raise SystemExit(f"plot: {path.name} is {report['mode']}, a picture shows cold times")
        for row in report["rows"]:
            if row.get("escapes", ESCAPES) != ESCAPES:
                continue
            if row["violations"]:
                raise SystemExit(f"plot: {path.name} has values outside the bounds")
            rows[row["k"], row["n"], row["m"]] = row
    if not rows:
        raise SystemExit(f"plot: no row with escapes {ESCAPES}")
    return reports[-1] | {"rows": list(rows.values())}


def speed_ups(rows: Sequence[dict[str, Any]]) -> dict[Shape, dict[int, float]]:
    """By shape, then by m in order."""
    found: dict[Shape, dict[int, float]] = {}
    for row in sorted(rows, key=lambda row: row["m"]):
        shape = found.setdefault((row["k"], row["n"]), {})
        shape[row["m"]] = row["dense_us"] / row["nf12_us"]
    return found


def geomeans(by_shape: dict[Shape, dict[int, float]]) -> dict[int, float]:
    """Over the shapes, for each m that all of them have."""
    common = set.intersection(*(set(values) for values in by_shape.values()))
    return {
        m: math.prod(values[m] for values in by_shape.values()) ** (1 / len(by_shape))
        for m in sorted(common)
    }


def rates_gb_per_s(rows: Sequence[dict[str, Any]], m: int) -> dict[Shape, tuple[float, float]]:
    """Bytes of weights a second, dense and packed."""
    return {
        (row["k"], row["n"]): (2e-3 * row["k"] * row["n"] / row["dense_us"], row["gb_per_s"])
        for row in rows
        if row["m"] == m
    }


def name_of(shape: Shape) -> str:
    return f"{shape[0]} x {shape[1]}"


def draw_speed_ups(report: dict[str, Any], axes: Any) -> None:
    by_shape = speed_ups(report["rows"])
    mean = geomeans(by_shape)
    for shape, values in by_shape.items():
        axes.plot(
            list(values), list(values.values()), marker="o", markersize=3, linewidth=1.2,
            label=name_of(shape),
        )  # fmt: skip
    if len(by_shape) > 1 and mean:
        axes.plot(list(mean), list(mean.values()), color=INK, linewidth=3, label="geomean")
    axes.axhline(1, color=INK, linewidth=0.8)
    tokens = sorted({m for values in by_shape.values() for m in values})
    axes.set_xscale("log", base=2)
    doubled = [m for m in tokens if m & (m - 1) == 0] or tokens  # labels of others would overlap
    axes.set_xticks(doubled, [str(m) for m in doubled])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens at once (m)")
    axes.set_ylabel("times as fast as dense BF16")
    axes.legend(title="k x n", fontsize=8, title_fontsize=8, ncols=2, frameon=False)


def draw_rates(report: dict[str, Any], axes: Any) -> None:
    m = min(row["m"] for row in report["rows"])
    rates = rates_gb_per_s(report["rows"], m)
    scale, unit = (1000, "TB") if report["read_gb_per_s"] >= 1000 else (1, "GB")
    for i, (label, color, ink) in enumerate(
        (("dense BF16", DENSE, INK), ("nf12", PACKED, "white"))
    ):
        places = [place + 0.4 * (i - 0.5) for place in range(len(rates))]
        heights = [pair[i] / scale for pair in rates.values()]
        bars = axes.bar(places, heights, width=0.38, color=color, label=label)
        axes.bar_label(bars, fmt="%.2f", label_type="center", fontsize=7, color=ink)
    ceiling = report["read_gb_per_s"] / scale
    axes.axhline(ceiling, color=INK, linewidth=1, linestyle="--")
    axes.annotate(
        f"reads {ceiling:.2f} {unit}/s at best", (len(rates) - 0.5, ceiling), ha="right",
        va="bottom", fontsize=8, color=INK,
    )  # fmt: skip
    axes.set_ylim(top=1.25 * max(ceiling, *(max(pair) / scale for pair in rates.values())))
    axes.set_xticks(range(len(rates)), [name_of(shape) for shape in rates], rotation=25, ha="right")
    axes.set_ylabel(f"{unit} of weights a second, m = {m}")
    axes.legend(loc="upper left", fontsize=8, ncols=2, frameon=False)


def draw(report: dict[str, Any], folder: Path) -> list[Path]:
    """Writes both pictures; the same results give the same bytes."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit(
            "plot: needs matplotlib, which is not installed: pip install 'nf12[plot]'"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw_on in (("speed-up", draw_speed_ups), ("bytes", draw_rates)):
        with matplotlib.rc_context({"svg.hashsalt": "nf12", "svg.fonttype": "path"}):
            figure = Figure(figsize=(8.5, 4.6), layout="constrained", facecolor="white")
            axes = figure.add_subplot()
            draw_on(report, axes)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_title(
                f"{report['device']}, weights cold in the caches, {report['date']}", fontsize=10
            )
            paths.append(folder / f"{name}.svg")
            figure.savefig(paths[-1], format="svg", metadata={"Date": None})
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("results", nargs="+", type=Path, help="of one machine")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder")
    options = parser.parse_args(arguments)
    for path in draw(read(options.results), options.output):
        print(path)


if __name__ == "__main__":
    main()
