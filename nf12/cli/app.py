"""The commands and their options. Exit codes are those of failures.py."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

import nf12
from nf12 import checkpoint, selftest
from nf12.checkpoint.plot import save_plot
from nf12.cli import failures, report, speed
from nf12.cli.progress import terminal_progress
from nf12.cli.speed import Json

app = typer.Typer(
    name="nf12",
    help="Lossless 12-bit BF16 weights: convert, verify and inspect checkpoints."
    f"\n\n{failures.EXIT_CODES}",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Source = Annotated[
    str, typer.Argument(help="Folder, safetensors file, or hub id that is in the local cache.")
]
Include = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads it at run time, on Python 3.10 too
    typer.Option(help="Pack only tensors whose name matches this pattern. May be repeated."),
]
Exclude = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(help="Keep tensors dense whose name matches this pattern. May be repeated."),
]
Revision = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="Branch, tag or commit of a hub id."),
]
Restart = Annotated[bool, typer.Option(help="Drop what an interrupted run left; do not resume.")]


@app.command()
def convert(
    src: Source,
    dst: Annotated[Path, typer.Argument(help="New folder, or .safetensors file for a file.")],
    include: Include = None,
    exclude: Exclude = None,
    cast: Annotated[
        bool, typer.Option("--cast", help="Round FP16 and FP32 weights to BF16: not lossless.")
    ] = False,
    max_shard_size: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Cut files at this size, such as 5GB; default: the files of SRC."),
    ] = None,
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Threads that share each tensor; default: all cores."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan only, write nothing.")] = False,
    restart: Restart = False,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Pack every BF16 matrix and expert stack of SRC into DST; copy all other files.

    Works tensor by tensor and writes DST.nf12-partial first: DST is there whole or not at all.
    Interrupted, even by kill -9, the same command goes on where it stopped.
    """
    with failures.exit_codes("convert", dst):
        with terminal_progress("packing") as progress:
            result = checkpoint.convert(
                src,
                dst,
                include=include or (),
                exclude=exclude or (),
                cast=cast,
                max_shard_bytes=None if max_shard_size is None else parse_size(max_shard_size),
                workers=workers,
                dry_run=dry_run,
                restart=restart,
                revision=revision,
                progress=progress,
            )
        if as_json:
            report.print_json(result.to_json())
        else:
            report.print_convert(result)


@app.command()
def verify(
    src: Source,
    dst: Annotated[str, typer.Argument(help="What was converted or unpacked from SRC.")],
    cast: Annotated[
        bool, typer.Option("--cast", help="Compare cast weights with SRC rounded to BF16.")
    ] = False,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Decode all of DST and compare every byte with SRC. Exit code 1 if anything differs."""
    with failures.exit_codes("verify"):
        with terminal_progress("comparing") as progress:
            result = checkpoint.verify(src, dst, cast=cast, revision=revision, progress=progress)
        if as_json:
            report.print_json(result.to_json())
        else:
            report.print_verify(result)
        if not result.identical:
            raise typer.Exit(failures.DIFFERENT)


@app.command()
def unpack(
    dst: Annotated[str, typer.Argument(help="Packed folder or safetensors file.")],
    out: Annotated[Path, typer.Argument(help="New folder, or .safetensors file for a file.")],
    restart: Restart = False,
) -> None:
    """Write the dense checkpoint that DST was converted from, tensor by tensor identical."""
    with failures.exit_codes("unpack", out):
        with terminal_progress("unpacking") as progress:
            result = checkpoint.unpack(dst, out, restart=restart, progress=progress)
        report.print_unpack(result)


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(help="Packed checkpoint, or a dense one to try.")],
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Draw exponents, window and escape rates into this PNG file."),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Weights to list, most escapes first.")] = 10,
    include: Include = None,
    exclude: Exclude = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Bits a weight, escapes per tensor and windows; of a dense checkpoint, what packing gives."""
    with failures.exit_codes("inspect"):
        with terminal_progress("reading") as progress:
            result = checkpoint.inspect(
                path,
                include=include or (),
                exclude=exclude or (),
                revision=revision,
                progress=progress,
            )
        if plot is not None:
            save_plot(result, plot)
        if as_json:
            report.print_json(result.to_json())
        else:
            report.print_inspect(result, top)


@app.command()
def info(as_json: Json = False) -> None:
    """What is installed, what this machine can use of it, and why not the rest."""
    with failures.exit_codes("info"):
        document: dict[str, Any] = nf12.info()
        if as_json:
            report.print_json(document)
        else:
            report.print_info(document)


@app.command("selftest")
def run_selftest(
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--report",
            help="Also validate and time gemm, and write all of it into this JSON file: minutes.",
        ),
    ] = None,
) -> None:
    """Hold the shipped kernels against the reference on this very machine."""
    with failures.exit_codes("selftest"):
        results = []
        for result in selftest.run():
            results.append(result)
            report.print_result(result)
        passed = report.print_verdict(results)
        if out is not None:
            document = selftest.make_report(results, progress=print)
            out.write_text(json.dumps(document, indent=2) + "\n")
            passed = document["passed"]
        if not passed:
            raise typer.Exit(failures.DIFFERENT)


app.command("bench")(speed.run_bench)
app.command("tune")(speed.run_tune)


def parse_size(text: str) -> int:
    """Bytes of "5GB" (powers of 1000), "5GiB" (of 1024) or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip(), re.IGNORECASE)
    unit = 1024 if match and match[3] else 1000
    value = int(float(match[1]) * unit ** " kmgt".index(match[2].lower() or " ")) if match else 0
    if value < 1:
        raise checkpoint.CheckpointError(f"--max-shard-size {text!r}: a size such as 5GB or 500MiB")
    return value


def main() -> None:
    """Entry point of the command `nf12`."""
    sys.exit(app())
