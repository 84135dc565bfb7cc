#!/usr/bin/env python3
"""What the machine code of the GPU code objects must show, as tables, kernel by kernel.

    scripts/dump_isa.py build/gpu                     all gfx targets of a build
    scripts/dump_isa.py gemm_fused.co [more.co ...]
    scripts/dump_isa.py build/gpu --markdown docs/machine-code.md

Reads the code objects alone: registers, scratch and LDS from their notes, everything else from the
disassembly. The bars are those of isa_fused.py, isa_matrix.py and isa_whole_weight.py.

Exit code 0: every bar holds; 1: one does not, it is named below the tables; 2: no tools or kernels.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import isa_fused
import isa_matrix
import isa_whole_weight
from gfx12_code import Instruction, compiler_of, disassemble, notes
from isa_rows import Column, Row, table

Measure = Callable[[str, str, dict[str, int], list[Instruction]], Row]


@dataclass(frozen=True)
class Kind:
    """Kernels that meet the same bars and share a table."""

    title: str
    name: re.Pattern[str]
    columns: tuple[Column, ...]
    measure: Measure


KINDS = (
    Kind(isa_fused.TITLE, isa_fused.NAME, isa_fused.COLUMNS, isa_fused.measure),
    Kind(isa_matrix.TITLE, isa_matrix.NAME, isa_matrix.COLUMNS, isa_matrix.measure),
    Kind(
        isa_whole_weight.UNPACK_TITLE,
        isa_whole_weight.UNPACK_NAME,
        isa_whole_weight.UNPACK_COLUMNS,
        isa_whole_weight.measure_unpack,
    ),
    Kind(
        isa_whole_weight.OTHER_TITLE,
        isa_whole_weight.OTHER_NAME,
        isa_whole_weight.OTHER_COLUMNS,
        isa_whole_weight.measure_other,
    ),
)


def files_of(paths: list[Path]) -> list[Path]:
    """Folders stand for the code objects in them."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob("*.co")) if path.is_dir() else [path]
    return found


def natural(name: str) -> list[tuple[int, str]]:
    return [(int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


@dataclass
class Target:
    """The code objects of one GPU."""

    name: str
    files: list[Path]
    rows: dict[str, list[Row]]  # by title
    faults: list[str]

    def tables(self) -> str:
        parts = []
        for kind in KINDS:
            if rows := self.rows.get(kind.title):
                parts.append(f"### {self.name}: {kind.title}\n\n{table(kind.columns, rows)}\n")
        return "\n".join(parts)


def measure(files: list[Path]) -> list[Target]:
    targets: dict[str, Target] = {}
    for file in files:
        name, fields = notes(file)
        target = targets.setdefault(name, Target(name, [], {}, []))
        target.files.append(file)
        code = disassemble(file)
        for kernel in sorted(fields, key=natural):
            kind = next((k for k in KINDS if k.name.search(kernel)), None)
            if kind is None:
                target.faults.append(f"{name} {kernel}: no bars are known for it")
                continue
            try:
                row = kind.measure(name, kernel, fields[kernel], code[kernel])
            except ValueError as error:
                target.faults.append(f"{name} {kernel}: {error}")
                continue
            target.rows.setdefault(kind.title, []).append(row)
            target.faults += [f"{name} {kernel}: {fault}" for fault in row.faults]
    return [targets[name] for name in sorted(targets)]


PREAMBLE = """\
# The machine code that ships

Written by `scripts/dump_isa.py BUILD/gpu --markdown docs/machine-code.md` from the code objects of
a build, compared by `tests/test_machine_code.py` with what the tree at hand compiles to. The bars
and the meaning of the columns are in [kernels.md](kernels.md) and `scripts/isa_*.py`. Compilers
other than the one named here give other registers: with them the tables are printed and every bar
is checked, but nothing is compared.

A tile is 16 x 64 weights, 1,536 bytes. Cycles are those of one compute unit, of which a tile's
bytes at full bandwidth leave about 467.
"""


def markdown(targets: list[Target]) -> str:
    """The text of docs/machine-code.md: equal code objects give equal text."""
    parts = [PREAMBLE]
    compilers = sorted({compiler_of(file) for target in targets for file in target.files})
    parts.append(f"Compiler: {', '.join(compilers)}\n")
    for target in targets:
        parts.append(f"## {target.name}\n")
        lines = ["| code object | SHA-256 |", "|---|---|"]
        for file in sorted(target.files, key=lambda file: file.stem):
            lines.append(f"| {file.stem} | `{hashlib.sha256(file.read_bytes()).hexdigest()}` |")
        parts.append("\n".join(lines) + "\n")
        parts.append(target.tables())
    return "\n".join(parts)


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("code_objects", nargs="+", type=Path, help="files, or folders of them")
    parser.add_argument("--json", type=Path, help="also write the rows there")
    parser.add_argument("--markdown", type=Path, help="also write the tables there, with hashes")
    arguments = parser.parse_args()
    targets = measure(files_of(arguments.code_objects))
    rows = [row for target in targets for rows in target.rows.values() for row in rows]
    faults = [fault for target in targets for fault in target.faults]
    for target in targets:
        print(target.tables())
    if not rows and not faults:
        print("dump_isa.py: no kernels found", file=sys.stderr)
        return 2
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(targets))
    print("\n".join(faults) if faults else f"{len(rows)} kernels, every bar holds")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
