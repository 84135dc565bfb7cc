#!/usr/bin/env python3
"""What the machine code of the matrix kernel must show, as a table, one row a block shape.

    scripts/dump_isa_matrix.py matrix.gfx1201.co [more.co ...]

The figures are those of the loop over pairs of tile columns, followed along its steady path: past
the branches around the side table.

Exit code 0: every bar holds; 1: one does not, it is named below the table; 2: no tools or kernels.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from dump_isa import LDS_READ_CYCLES, steady_path, throughput
from gfx12_code import Instruction, disassemble, notes
from gfx12_hazards import unguarded_reads

LOADS_PER_TILE = 3  # of 16 bytes a lane
WMMAS_PER_TILE = 4  # for 16 tokens
PITCH_BYTES = 144  # of a token in shared memory
TILE_COLUMNS = 2  # of one round of the loop
LANE_WEIGHTS = 32
MAX_VGPRS = 256
MIN_APART = 8  # matrix instructions or loads between a barrier's signal and its wait
MAX_TILE_CYCLES = 280.0
MAX_LDS_CYCLES = 400


class MatrixInstruction(Instruction):
    """The work of this kernel is the matrix instruction."""

    @property
    def is_dot(self) -> bool:
        return self.opcode.startswith("v_wmma_f32_16x16x16_bf16")


@dataclass
class Row:
    """One kernel; a tile is 16 x 64 weights."""

    target: str
    kernel: str
    tokens: int
    vgprs: int
    sgprs: int
    scratch_bytes: int
    spills: int
    lds_bytes: int
    tile_rows: int
    wmmas_per_tile: float
    weight_bytes_per_tile: float
    valu_per_weight: float
    waits: str
    tiles_in_flight: float
    apart: int
    cycles_per_tile: float
    lds_cycles_per_tile: float
    hazards: int
    faults: list[str]


def main_loop(code: list[MatrixInstruction]) -> tuple[int, int] | None:
    """Bounds of the loop with the most matrix instructions and no such loop inside."""
    index = {instruction.address: i for i, instruction in enumerate(code)}
    best: tuple[int, int] | None = None
    most = 0
    for last, instruction in enumerate(code):
        if instruction.target is None or instruction.target > instruction.address:
            continue
        first = index[instruction.target]
        body = code[first : last + 1]
        wmmas = sum(i.is_dot for i in body)
        if any(i.is_weight_load for i in body) and wmmas > most:
            best, most = (first, last), wmmas
    return best


def flight(path: list[Instruction]) -> tuple[float, list[int]]:
    """Least number of tiles in flight at any matrix instruction, and the counts waited for. Loads
    return in order, those of x among those of weights."""
    queue: list[bool] = []  # is it one of weights
    least = 10**9
    waits: list[int] = []
    for lap in range(2):
        for instruction in path:
            if instruction.opcode.startswith("global_load"):
                queue.append(instruction.is_weight_load)
            elif wait := re.match(r"s_wait_loadcnt(?:_dscnt)? (0x\w+|\d+)", instruction.text):
                count = int(wait.group(1), 0) & 0x3F
                queue = queue[len(queue) - count :] if count < len(queue) else queue
                if lap:
                    waits.append(count)
            elif instruction.is_dot and lap:
                least = min(least, sum(queue))
    return least / LOADS_PER_TILE, waits


def least_apart(path: list[Instruction]) -> int:
    """Matrix instructions and loads between a signal and the next wait, where they are fewest."""
    least = 10**9
    count: int | None = None
    for instruction in [*path, *path]:
        if instruction.opcode == "s_barrier_signal":
            count = 0
        elif instruction.opcode == "s_barrier_wait":
            least = least if count is None else min(least, count)
            count = None
        elif count is not None and (
            instruction.is_dot or instruction.opcode.startswith(("global_load", "ds_load"))
        ):
            count += 1
    return least


def measure(target: str, name: str, fields: dict[str, int], code: list[Instruction]) -> Row:
    tokens = int(name.rsplit("_t", 1)[1])
    instructions = [MatrixInstruction(i.address, i.size_bytes, i.text, i.target) for i in code]
    bounds = main_loop(instructions)
    if bounds is None:
        print(f"dump_isa_matrix.py: {name} has no loop that streams weights", file=sys.stderr)
        sys.exit(1)
    path = steady_path(list(instructions), *bounds)
    loads = [i for i in path if i.is_weight_load]
    wmmas = sum(i.is_dot for i in path)
    others = sum(i.opcode.startswith("v_") and not i.is_dot for i in path)
    tiles = len(loads) / LOADS_PER_TILE
    in_flight, waits = flight(path)
    row = Row(
        target=target,
        kernel=name,
        tokens=tokens,
        vgprs=fields["vgpr_count"],
        sgprs=fields["sgpr_count"],
        scratch_bytes=fields["private_segment_fixed_size"],
        spills=fields["vgpr_spill_count"] + fields["sgpr_spill_count"],
        lds_bytes=fields["group_segment_fixed_size"],
        tile_rows=int(tiles / TILE_COLUMNS),
        wmmas_per_tile=wmmas / tiles,
        weight_bytes_per_tile=len(loads) * 16 * 32 / tiles,
        valu_per_weight=others / tiles / LANE_WEIGHTS,
        waits=" ".join(str(w) for w in dict.fromkeys(waits)),
        tiles_in_flight=in_flight,
        apart=least_apart(path),
        cycles_per_tile=throughput(path, target) / 2 / tiles,  # two SIMDs
        lds_cycles_per_tile=sum(LDS_READ_CYCLES.get(i.opcode, 0) for i in path) / tiles,
        hazards=len(unguarded_reads(code)),
        faults=[],
    )
    row.faults = faults_of(row, code, path, waits)
    return row


def faults_of(
    row: Row, code: list[Instruction], path: list[Instruction], waits: list[int]
) -> list[str]:
    indexed = {i.opcode for i in code if i.opcode.startswith(("v_movrel", "scratch_"))}
    narrow = [i.text for i in path if i.is_weight_load and i.opcode != "global_load_b128"]
    stages = {  # halves of shared memory that are written
        int(offset.group(1)) // (row.lds_bytes // 2) if offset else 0
        for i in path
        if i.opcode.startswith("ds_store")
        for offset in [re.search(r"offset:(\d+)", i.text)]
    }
    wanted = WMMAS_PER_TILE * row.tokens // 16
    checks = [
        (row.vgprs <= MAX_VGPRS, f"{row.vgprs} VGPRs, at most {MAX_VGPRS}"),
        (row.scratch_bytes == 0, f"{row.scratch_bytes} bytes of scratch"),
        (row.spills == 0, f"{row.spills} spills"),
        (not indexed, f"indexed registers: {', '.join(sorted(indexed))}"),
        (not narrow, f"a weight load that is not global_load_b128: {narrow[:1]}"),
        (row.tile_rows in (1, 2), f"loads of {row.tile_rows} tile rows a column"),
        (row.wmmas_per_tile == wanted, f"{row.wmmas_per_tile} WMMA a tile, not {wanted}"),
        (row.tiles_in_flight >= 2, f"{row.tiles_in_flight:.1f} tiles in flight, at least 2"),
        (all(waits), f"a wait for every load: {row.waits}"),
        (row.lds_bytes == 2 * PITCH_BYTES * row.tokens, f"{row.lds_bytes} bytes of LDS"),
        (stages == {0, 1}, f"x is stored to {len(stages)} stage"),
        (row.apart >= MIN_APART, f"{row.apart} between signal and wait, at least {MIN_APART}"),
        (row.cycles_per_tile <= MAX_TILE_CYCLES, f"{row.cycles_per_tile:.0f} cycles a tile"),
        (row.lds_cycles_per_tile <= MAX_LDS_CYCLES, f"{row.lds_cycles_per_tile:.0f} LDS cycles"),
        (row.hazards == 0, f"{row.hazards} reads of scalar registers that may see an old value"),
    ]
    return [text for holds, text in checks if not holds]


COLUMNS = (
    ("tokens", "tokens", "d"),
    ("tile rows a wave", "tile_rows", "d"),
    ("VGPR", "vgprs", "d"),
    ("SGPR", "sgprs", "d"),
    ("scratch", "scratch_bytes", "d"),
    ("spills", "spills", "d"),
    ("LDS bytes", "lds_bytes", "d"),
    ("WMMA / tile", "wmmas_per_tile", "g"),
    ("weight bytes / tile", "weight_bytes_per_tile", "g"),
    ("other VALU / weight", "valu_per_weight", ".2f"),
    ("loadcnt waits", "waits", "s"),
    ("tiles in flight", "tiles_in_flight", "g"),
    ("signal to wait", "apart", "d"),
    ("cycles / tile", "cycles_per_tile", ".0f"),
    ("LDS cycles / tile", "lds_cycles_per_tile", "g"),
    ("hazards", "hazards", "d"),
)


def table(rows: list[Row]) -> str:
    lines = [
        "| " + " | ".join(title for title, _, _ in COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
    ]
    for row in rows:
        cells = (format(getattr(row, field), spec) for _, field, spec in COLUMNS)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("code_objects", nargs="+", type=Path)
    arguments = parser.parse_args()
    everything: list[Row] = []
    for code_object in arguments.code_objects:
        target, fields = notes(code_object)
        code = disassemble(code_object)
        rows = [
            measure(target, name, fields[name], code[name])
            for name in sorted(fields, key=lambda n: (len(n), n))
            if re.search(r"_matrix_t\d+$", name)
        ]
        print(f"### {target}: matrix\n\n{table(rows)}\n")
        everything += rows
    if not everything:
        print("dump_isa_matrix.py: no matrix kernels found", file=sys.stderr)
        return 2
    faults = [f"{row.target} {row.kernel}: {fault}" for row in everything for fault in row.faults]
    print("\n".join(faults) if faults else f"{len(everything)} kernels, every bar holds")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
