"""`nf12 bench` and `nf12 tune`: what measures gemm on this machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Optional, TypeVar

import torch
import typer

import nf12
from nf12 import bench, machine, tune, tuned, validation
from nf12.backend import GPU_BACKENDS
from nf12.cli import failures, report
from nf12.cli.progress import counted
from nf12.functional import AUTO_KERNEL

T = TypeVar("T")

Backend = Annotated[str, typer.Option(help="auto, cpu, cuda, hip or torch.")]
Shapes = Annotated[
    Optional[str],  # noqa: UP045 - typer reads it at run time, on Python 3.10 too
    typer.Option(help="K x N of weights: 4096x4096,4096x14336. Default: of current models."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def run_bench(
    backend: Backend = "auto",
    shapes: Shapes = None,
    m: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Tokens at once: 1,8,64. Default: up to 64 on a CPU, 4096 on a GPU."),
    ] = None,
    escapes: Annotated[
        str, typer.Option(help="Weights outside the window: rates, or raw for tiles all raw.")
    ] = bench.USUAL_ESCAPES,
    warm: Annotated[
        bool, typer.Option("--warm", help="The same weight again and again, not from memory.")
    ] = False,
    kernel: Annotated[
        str, typer.Option(help="One kernel by name, not the chosen one.")
    ] = AUTO_KERNEL,
    as_json: Json = False,
) -> None:
    """Time the packed product beside dense BF16 on this machine, the values checked.

    Exit code 1 if a value lies outside the bounds.
    """
    with failures.exit_codes("bench"), torch.inference_mode():
        device = validation.device_of(_parsed(nf12.Backend, backend))
        chosen = nf12.resolve_backend(backend, device)
        wanted = shapes_of(shapes) or bench.default_shapes(device)
        tokens = tokens_of(m) or bench.default_tokens(device)
        kinds = escapes.split(",")
        for kind in kinds:
            _parsed(bench.escape_pattern, kind)
        if kernel not in (AUTO_KERNEL, *nf12.kernels(chosen)):
            known = ", ".join((AUTO_KERNEL, *nf12.kernels(chosen)))
            raise typer.BadParameter(f"backend {chosen} has no kernel {kernel!r}, but {known}")
        head = machine.describe(device, chosen, cold=not warm)
        measured = bench.run(
            device, chosen, wanted, tokens, escapes=kinds, cold=not warm, kernel=kernel, seconds=0.3
        )
        rows: list[bench.Row] = []
        for row in counted(measured, "measuring", len(wanted) * len(kinds) * len(tokens)):
            if isinstance(row, bench.Refusal):
                print(f"left out: {row.k}x{row.n}, m {row.m}: {row.reason}", file=sys.stderr)
            else:
                rows.append(row)
        if as_json:
            report.print_json(head | {"rows": [row.to_dict() for row in rows]})
        else:
            report.print_bench(head, rows)
        if any(row.violations for row in rows):
            raise typer.Exit(failures.DIFFERENT)


def run_tune(
    backend: Backend = "auto",
    shapes: Shapes = None,
    model: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Shapes of the weights of this checkpoint, packed or dense."),
    ] = None,
    m: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Tokens at once. Default: 1,2,4,8 and so on to 4096."),
    ] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete this GPU's table, measure nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Time every kernel on this machine's GPU and use the fastest from now on.

    The table lies in the user's cache (NF12_CACHE names another folder), for this GPU, driver and
    build of nf12; NF12_TUNE=0 ignores it. Exit code 1 if a kernel's values lie outside the bounds.
    """
    with failures.exit_codes("tune"):
        device = validation.device_of(_parsed(nf12.Backend, backend))
        chosen = nf12.resolve_backend(backend, device)
        if chosen not in GPU_BACKENDS:
            raise nf12.BackendUnavailable(
                f"there is nothing to tune for backend {chosen}: a GPU's kernels are measured, "
                "a CPU's are chosen by what its instructions are"
            )
        if forget:
            print("forgotten" if tuned.forget(device) else "there was no table")
            return
        wanted = shapes_of(shapes) or (tune.shapes_of_model(model) if model else [])
        wanted = wanted or list(bench.default_shapes(device))
        tokens = tokens_of(m) or list(bench.GPU_TOKENS)
        measured = list(
            counted(
                tune.run(device, chosen, wanted, tokens), "measuring", len(wanted) * len(tokens)
            )
        )
        path = tune.save(device, measured)
        if as_json:
            rows = [at.to_dict() for at in measured]
            report.print_json({"path": str(path), "key": tuned.key(device), "measured": rows})
        else:
            report.print_tune(measured, path)
        if any(at.wrong for at in measured):
            raise typer.Exit(failures.DIFFERENT)


def shapes_of(text: str | None) -> list[tuple[int, int]]:
    """(k, n) of "4096x4096,896x4864"."""
    shapes = []
    for part in filter(None, (text or "").split(",")):
        match = re.fullmatch(r"(\d+)x(\d+)", part.strip().lower())
        if match is None or 0 in (int(match[1]), int(match[2])):
            raise typer.BadParameter(f"{part!r} is no shape, write k x n as 4096x14336")
        shapes.append((int(match[1]), int(match[2])))
    return shapes


def tokens_of(text: str | None) -> list[int]:
    """Of "1,8,64"."""
    parts = [part.strip() for part in filter(None, (text or "").split(","))]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} are no token counts, write 1,8,64")
    return [int(part) for part in parts]


def _parsed(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
