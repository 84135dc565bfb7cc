"""What the commands print on stdout: plain lines, as good in a file as on a terminal."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nf12.bench import Row, summarise
from nf12.checkpoint import ConvertReport, InspectReport, UnpackReport, VerifyReport
from nf12.selftest import Result
from nf12.tune import Measured

SHOWN_DIFFERENCES = 10
PIPE_WIDTH = 10_000  # nothing tells the width of a pipe, and names must not be cut there


def size(nbytes: float) -> str:
    """Bytes as a person reads them, in powers of 1000 as disks and hubs count."""
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    for unit in ("kB", "MB", "GB"):
        nbytes /= 1000
        if nbytes < 1000:
            return f"{nbytes:.1f} {unit}"
    return f"{nbytes / 1000:.2f} TB"


def print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2))


def print_convert(report: ConvertReport) -> None:
    at_least = "at least " if report.dry_run else ""
    ratio = report.bytes / max(report.source_bytes, 1)
    print(
        f"{report.target}: {at_least}{size(report.bytes)} from {size(report.source_bytes)}"
        f" ({ratio:.4f}), {len(report.files)} files"
        + ("; dry run, nothing written" if report.dry_run else f", {report.seconds:.1f} s")
    )
    bits = report.bits_per_weight
    print(
        f"packed: {len(report.packed)} of {len(report.tensors)} tensors,"
        f" {report.packed_share:.2%} of the bytes"
        + (f", {at_least}{bits:.3f} bits a weight" if bits is not None else "")
    )
    if report.resumed_bytes:
        print(f"resumed: {size(report.resumed_bytes)} were done by an earlier run")
    for copy, kept in report.ties.items():
        print(f"tied: {copy} is stored once, as {kept}")
    cast = [t for t in report.tensors if t.packed and t.dtype != "BF16"]
    if cast and not report.dry_run:
        worst = max(cast, key=lambda t: t.worst_error or 0)
        error = f"worst error {worst.worst_error:.3g} in {worst.name}"
        print(f"cast to BF16: {len(cast)} tensors, {error}")
    for tensor in report.would_not_shrink:
        shape = " x ".join(map(str, tensor.shape))
        print(f"stays dense: {tensor.name} ({shape}) {tensor.reason}")
    others = [t for t in report.tensors if not t.packed and t not in report.would_not_shrink]
    for reason, count in Counter(t.reason for t in others).most_common():
        nbytes = sum(t.source_bytes for t in others if t.reason == reason)
        print(f"stays dense: {count} tensors, {size(nbytes)}: {reason}")
    if report.copied:
        print(f"{'would copy' if report.dry_run else 'copied'}: {', '.join(report.copied)}")


def print_verify(report: VerifyReport) -> None:
    checked = f"{report.tensors} tensors ({report.packed} packed), {size(report.bytes)}"
    files = f", {report.files} other files" if report.files else ""
    if report.identical:
        cast = f"; {len(report.cast)} as rounded to BF16" if report.cast else ""
        print(f"identical: {checked}{files}{cast}, {report.seconds:.1f} s")
        return
    print(f"different: {len(report.differences)} differences in {checked}{files}")
    for difference in report.differences[:SHOWN_DIFFERENCES]:
        print(f"  {difference}")
    if len(report.differences) > SHOWN_DIFFERENCES:
        print(f"  and {len(report.differences) - SHOWN_DIFFERENCES} more")


def print_unpack(report: UnpackReport) -> None:
    print(
        f"{report.target}: {report.tensors} tensors, {report.unpacked} of them unpacked,"
        f" {size(report.bytes)}, {report.seconds:.1f} s"
    )


def print_inspect(report: InspectReport, top: int) -> None:
    if not report.weights:
        print(f"{report.path}: {report.dense_tensors} tensors, none packed")
        return
    planned = "dense; packed it would take" if report.planned else "packed,"
    print(
        f"{report.path}: {planned} {size(report.bytes)}: {len(report.weights)} weights at"
        f" {report.bits_per_weight:.3f} bits, {report.escape_rate:.3e} escapes a weight;"
        f" {report.dense_tensors} dense tensors, {size(report.dense_bytes)}"
    )
    if top == 0:
        return
    table = Table(box=None, pad_edge=False)
    shown = min(top, len(report.weights))
    table.add_column(f"the {shown} weights with most escapes", overflow="fold")
    for heading in ("shape", "bits", "escapes", "rate", "window", "clean", "listed", "raw tiles"):
        table.add_column(heading, justify="right")
    for w in report.worst[:top]:
        table.add_row(
            Text(w.name),
            " x ".join(map(str, w.shape)),
            f"{w.bits_per_weight:.3f}",
            str(w.escapes),
            f"{w.escape_rate:.2e}",
            f"{w.base}..{w.base + 15}",
            *(str(tiles) for tiles in (w.clean_tiles, w.listed_tiles, w.raw_tiles)),
        )
    console().print(table)


def print_info(info: dict[str, Any]) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in info["versions"].items())
    print(versions)
    library = info["library"]
    if library["loaded"]:
        targets = ", ".join(library["gpu_targets"]) or "none"
        print(
            f"library: {library['compiler']}, torch target {library['torch_target']},"
            f" format {library['format_version']}, GPU kernels {targets},"
            f" source {library['source_hash'][:12]}"
        )
    else:
        print(f"library: not in use: {library['reason']}")
    cpu = info["cpu"]
    for level in cpu["levels"]:
        usable = level in cpu["supported"]
        state = "used" if level == cpu["highest"] else "usable" if usable else "not on this CPU"
        print(f"cpu level {level}: {state}")
    for name, state in info["backends"].items():
        print(f"backend {name}: {'usable' if state['usable'] else state['reason']}")
    for name, device in info["devices"].items():
        facts = [f"{key} {value}" for key, value in device.items() if value is not None]
        print(f"device {name}: {', '.join(facts)}")
    for name, value in info["environment"].items():
        print(f"{name}={value}")


def print_bench(head: dict[str, Any], rows: list[Row]) -> None:
    driver = f", driver {head['driver']}" if "driver" in head else ""
    print(
        f"{head['device']}{driver}, backend {head['backend']}, torch {head['torch']},"
        f" {head['mode']}, reads {head['read_gb_per_s']:.1f} GB/s at best"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("k x n")
    plain = any(row.nf12_us_plain is not None for row in rows)
    headings = ("m", "escapes", "kernel", "dense us", *("plain us",) * plain, "nf12 us", "faster")
    for heading in (*headings, "GB/s", "of read", "wrong"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row.k} x {row.n}",
            str(row.m),
            row.escapes,
            row.kernel,
            f"{row.dense_us:.1f}",
            *([f"{row.nf12_us_plain:.1f}"] if row.nf12_us_plain is not None else []),
            f"{row.nf12_us:.1f}",
            f"{row.ratio:.2f}x",
            f"{row.gb_per_s:.1f}",
            f"{row.gb_per_s / head['read_gb_per_s']:.0%}",
            str(row.violations),
        )
    console().print(table)
    for line in summarise(rows):
        k, n = line.worst_shape
        print(
            f"m {line.m}, escapes {line.escapes}: {line.geomean:.2f}x as fast as dense BF16,"
            f" at worst {line.worst:.2f}x ({k} x {n})"
        )


def print_tune(measured: list[Measured], path: Path) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("k x n")
    kernels = list(dict.fromkeys(kernel for at in measured for kernel in at.us))
    for heading in ("m", *(f"{kernel} us" for kernel in kernels), "by the rules", "used", "gain"):
        table.add_column(heading, justify="right")
    for at in measured:
        times = (
            f"{at.us[kernel]:.1f}{'!' * (kernel in at.wrong)}" if kernel in at.us else "-"
            for kernel in kernels
        )
        table.add_row(f"{at.k} x {at.n}", str(at.m), *times, at.rules, at.kernel, f"{at.gain:.2f}x")
    console().print(table)
    if any(at.wrong for at in measured):
        print("!: values outside the bounds, never used")
    changed = sum(at.kernel != at.rules for at in measured)
    print(f"{path}: {changed} of {len(measured)} differ from the rules")


def print_result(result: Result) -> None:
    state = "ok" if result.passed else "FAILED"
    what = f"{result.target:20} {result.check:10} {result.detail}"
    print(f"{state:6} {what} ({result.seconds:.2f} s)", flush=True)


def print_verdict(results: list[Result]) -> bool:
    """Whether all passed."""
    failed = sum(not result.passed for result in results)
    print(f"{len(results)} checks, {failed} failed" if failed else f"{len(results)} checks passed")
    return failed == 0


def console() -> Console:
    standard = Console()
    return standard if standard.is_terminal else Console(width=PIPE_WIDTH)
