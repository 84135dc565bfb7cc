"""The picture of `nf12 inspect --plot`: exponents with the window, escapes and bits per weight."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from nf12.checkpoint.errors import CheckpointError
from nf12.checkpoint.inspect import InspectReport
from nf12.packing import WINDOW

CODED, ESCAPED, WINDOW_SHADE, GREY = "#3b6ea8", "#d9622b", "#e8eef6", "#666666"
EXPONENT_BIAS = 127
SHOWN_WORST = 12
NAME_CHARACTERS = 44
MAX_TICKS = 12


def save_plot(report: InspectReport, path: str | Path) -> None:
    """Draws `report` as a PNG. Raises CheckpointError where matplotlib or packed weights lack."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise CheckpointError(
            "--plot needs matplotlib, which is not installed: pip install 'nf12[plot]'"
        ) from None
    if not report.weights:
        raise CheckpointError(f"{report.path}: no packed weight to draw")
    figure = Figure(figsize=(12, 8), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(1, 1), width_ratios=(1.15, 1))
    _draw_exponents(figure.add_subplot(grid[0, :]), report)
    _draw_rates(figure.add_subplot(grid[1, 0]), report)
    _draw_worst(figure.add_subplot(grid[1, 1]), report)
    planned = "as NF12 would store it" if report.planned else "in NF12"
    figure.suptitle(
        f"{Path(report.path).name} {planned}: {len(report.weights)} weights,"
        f" {report.bits_per_weight:.2f} bits a weight, {report.escape_rate:.1e} escapes a weight",
        fontsize=13,
    )
    figure.savefig(path, dpi=110, format="png")


def _draw_exponents(axes: Any, report: InspectReport) -> None:
    """All weights by exponent. Each weight has its own window; the commonest is shaded."""
    total = report.exponents
    escaped = np.zeros_like(total)
    weights_of_base: Counter[int] = Counter()
    for weight in report.weights:
        escaped += np.where(weight.is_coded, 0, weight.exponents)
        weights_of_base[weight.base] += weight.weights
    base, windowed = weights_of_base.most_common(1)[0]

    used = np.flatnonzero(total[1:255]) + 1
    low = int(min(used.min(initial=base), base))
    high = int(max(used.max(initial=base), base + WINDOW - 1))
    exponents = np.arange(low, high + 1)
    # Zeros with subnormals, and Inf with NaN, have no place on the scale: a gap sets them apart.
    positions = np.concatenate(([low - 3], exponents, [high + 3]))
    rows = np.concatenate(([0], exponents, [255]))
    axes.axvspan(base - 0.5, base + WINDOW - 0.5, color=WINDOW_SHADE, zorder=0)
    width = 0.8
    axes.bar(positions, total[rows], width, color=CODED, label="in the window: 4-bit code")
    axes.bar(positions, escaped[rows], width, color=ESCAPED, label="escape: 32-bit entry")
    axes.set_yscale("log")
    axes.set_ylim(0.5, total.max() * 6)
    axes.margins(x=0.01)
    step = next(step for step in (4, 8, 16, 32) if len(exponents) <= step * MAX_TICKS)
    shown = [e for e in exponents if (e - EXPONENT_BIAS) % step == 0 and low < e < high]
    axes.set_xticks(
        [low - 3, *shown, high + 3],
        ["zero,\nsubnormal", *(f"$2^{{{e - EXPONENT_BIAS}}}$" for e in shown), "Inf,\nNaN"],
    )
    share = windowed / sum(weights_of_base.values())
    axes.text(
        base + WINDOW / 2 - 0.5,
        total.max() * 2.2,
        f"window {base}..{base + WINDOW - 1}, of {share:.0%} of the weights"
        + (f" ({len(weights_of_base)} windows in all)" if len(weights_of_base) > 1 else ""),
        ha="center",
        color=CODED,
    )
    axes.set_xlabel("magnitude")
    axes.set_ylabel("weights")
    axes.legend(loc="upper left", frameon=False)
    _tidy(axes)


def _draw_rates(axes: Any, report: InspectReport) -> None:
    """Escape rate of each weight in the order of the checkpoint."""
    rates = np.array([weight.escape_rate for weight in report.weights])
    raw = np.array([weight.raw_tiles > 0 for weight in report.weights])
    # A logarithmic axis has no zero: weights without an escape sit on the floor of the picture.
    floor = float(rates[rates > 0].min(initial=1e-4)) / 4
    heights = np.maximum(rates, floor)
    order = np.arange(len(rates))
    groups = (
        ("some tiles raw", raw, ESCAPED),
        ("tiles clean or listed", ~raw & (rates > 0), CODED),
        ("no escape", ~raw & (rates == 0), GREY),
    )
    for label, chosen, color in groups:
        if chosen.any():
            axes.scatter(order[chosen], heights[chosen], s=14, color=color, label=label)
    axes.set_yscale("log")
    axes.set_ylim(floor / 2, float(heights.max()) * 20)
    axes.set_title("escapes of each weight", fontsize=10, pad=14)
    axes.set_xlabel("weight, in the order of the checkpoint")
    axes.set_ylabel("escapes per weight")
    axes.legend(loc="upper right", frameon=False, fontsize=9)
    _tidy(axes)


def _draw_worst(axes: Any, report: InspectReport) -> None:
    """Bits a weight of those with the most escapes, beside the 12 of the payload."""
    worst = report.worst[:SHOWN_WORST][::-1]
    sizes = [weight.bits_per_weight for weight in worst]
    axes.barh(range(len(worst)), sizes, 0.7, color=CODED)
    for row, (weight, value) in enumerate(zip(worst, sizes, strict=True)):
        axes.text(value, row, f" {value:.2f}", va="center", fontsize=8)
        rate = f"{weight.escape_rate:.1e} "
        axes.text(12, row, rate, va="center", ha="right", fontsize=8, color="white")
    axes.set_yticks(range(len(worst)), [_shortened(w.name) for w in worst], fontsize=8)
    for bits, label in ((12, "payload"), (16, "BF16")):
        axes.axvline(bits, color=GREY, linewidth=1, linestyle="--")
        axes.text(bits, len(worst) - 0.3, label, ha="center", color=GREY, fontsize=8)
    axes.set_xlim(0, 18)
    axes.set_ylim(-0.6, len(worst) - 0.4)
    axes.set_xticks(range(0, 17, 4))
    axes.set_title("most escapes (rate inside the bar)", fontsize=10, pad=14)
    axes.set_xlabel("bits a weight")
    _tidy(axes)


def _shortened(name: str) -> str:
    """Both ends of a long name: the layer stands in the first half, the weight in the last."""
    half = NAME_CHARACTERS // 2 - 1
    return name if len(name) <= NAME_CHARACTERS else f"{name[:half]}...{name[-half:]}"


def _tidy(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
