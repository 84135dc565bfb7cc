#!/usr/bin/env python3
"""What the machine code of a GPU code object must show, as a table, kernel by kernel.

    scripts/dump_isa.py fused.gfx1201.co [more.co ...] [--json FILE]

Reads the code object alone: registers, scratch and LDS from its notes, everything else from the
disassembly of the main loop. That loop is followed along its steady path: around the side table,
as its tiles are clean, and through every multiplication.

Exit code 0: every bar holds; 1: one does not, it is named below the table; 2: no tools or kernels.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from gfx12_code import Instruction, disassemble, notes, run, tool
from gfx12_hazards import unguarded_reads

TILE_WEIGHTS = 1024
LANES = 32
LOADS_PER_PAIR = 6  # of 16 bytes a lane: two tiles of 1,536 bytes over 32 lanes
WEIGHTS_PER_PAIR = 2 * TILE_WEIGHTS // LANES  # of one lane
MAX_VGPRS = 96  # sixteen waves of a SIMD's 1,536
MAX_DECODE_OPS = 2.5
MAX_TILE_CYCLES = 280.0
MAX_LDS_CYCLES = 400
ONE_TOKEN_LDS_BYTES = 32 * 1024
WAVES = 8


@dataclass
class Row:
    """One kernel; the figures of a tile are those of its main loop, per 16 x 64 weights."""

    target: str
    kernel: str
    tokens: int
    vgprs: int
    sgprs: int
    scratch_bytes: int
    spills: int
    lds_bytes: int
    code_bytes: int
    loop_bytes: int
    dots_per_tile_token: float
    weight_loads_per_tile_bytes: float
    decode_ops_per_weight: float
    waits: str
    tiles_in_flight: float
    cycles_per_tile: float
    lds_cycles_per_tile: float
    hazards: int
    faults: list[str]


def main_loop(code: list[Instruction]) -> tuple[int, int] | None:
    """Indices of the first and last instruction of the innermost loop that streams weights for x
    in scalar registers (the other such loop hands x from lane to lane by v_readlane)."""
    index = {instruction.address: i for i, instruction in enumerate(code)}
    loops: dict[int, int] = {}
    for last, instruction in enumerate(code):
        if instruction.target is not None and instruction.target <= instruction.address:
            loops[index[instruction.target]] = last
    streams = []
    for first, last in loops.items():
        body = code[first : last + 1]
        by_lane = sum(i.opcode.startswith("v_readlane") for i in body) >= LANES
        if any(i.is_weight_load for i in body) and any(i.is_dot for i in body) and not by_lane:
            streams.append((first, last))
    return min(streams, key=lambda bounds: bounds[1] - bounds[0], default=None)


def steady_path(code: list[Instruction], first: int, last: int) -> list[Instruction]:
    """The instructions of one round over clean tiles: of the ways from the loop's head back to it,
    those with the most dot products and weight loads, and of these the shortest."""
    index = {instruction.address: i for i, instruction in enumerate(code)}
    best: dict[int, tuple[int, int]] = {}  # work from here on, minus the instructions it takes
    step: dict[int, int] = {}
    for i in range(last, first - 1, -1):
        instruction = code[i]
        nexts = [] if instruction.opcode == "s_branch" else [i + 1]
        if instruction.target is not None:
            nexts.append(index[instruction.target])
        for following in nexts:
            if following != first and not i < following <= last:
                continue  # out of the loop, or round an inner one
            if following != first and following not in best:
                continue
            work, cost = (0, 0) if following == first else best[following]
            work += instruction.is_dot + instruction.is_weight_load
            if i not in best or (work, cost - 1) > best[i]:
                best[i], step[i] = (work, cost - 1), following
    path = [code[first]]
    i = step[first]
    while i != first:
        path.append(code[i])
        i = step[i]
    return path


def flight(path: list[Instruction]) -> tuple[float, list[int]]:
    """Least number of tiles in flight at any dot product, and the counts waited for."""
    outstanding = 0
    least = 10**9
    waits: list[int] = []
    for lap in range(2):
        for instruction in path:
            if instruction.is_weight_load:
                outstanding += 1
            elif wait := re.match(r"s_wait_loadcnt(?:_dscnt)? (0x\w+|\d+)", instruction.text):
                count = int(wait.group(1), 0) & 0x3F
                outstanding = min(outstanding, count)
                if lap:
                    waits.append(count)
            elif instruction.is_dot and lap:
                least = min(least, outstanding)
    return least / (LOADS_PER_PAIR / 2), waits


def throughput(path: list[Instruction], target: str) -> float:
    """llvm-mca's Block RThroughput of the path, in cycles of one SIMD."""
    text = "\n".join(i.text for i in path if i.target is None)
    with tempfile.NamedTemporaryFile("w", suffix=".s") as file:
        file.write(text + "\n")
        file.flush()
        report = run(
            tool("llvm-mca"),
            "-mtriple=amdgcn",
            f"-mcpu={target}",
            "-iterations=1",
            "-instruction-info=0",
            "-resource-pressure=0",
            file.name,
        )
    found = re.search(r"Block RThroughput: ([\d.]+)", report)
    return float(found.group(1)) if found else float("nan")


# Cycles that a wave's read keeps the LDS busy: 32 lanes at 128 bytes a cycle.
LDS_READ_CYCLES = {"ds_load_b32": 1, "ds_load_b64": 2, "ds_load_b96": 3, "ds_load_b128": 4}


def measure(target: str, name: str, fields: dict[str, int], code: list[Instruction]) -> Row:
    tokens = int(name.rsplit("_m", 1)[1])
    bounds = main_loop(code)
    if bounds is None:
        print(f"dump_isa.py: {name} has no loop that streams weights", file=sys.stderr)
        sys.exit(1)
    path = steady_path(code, *bounds)
    loads = [i for i in path if i.is_weight_load]
    dots = sum(i.is_dot for i in path)
    others = sum(i.opcode.startswith("v_") and not i.is_dot for i in path)
    pairs = len(loads) / LOADS_PER_PAIR
    tiles = 2 * pairs
    in_flight, waits = flight(path)
    cycles = throughput(path, target) / 2 / tiles  # two SIMDs
    lds_cycles = sum(LDS_READ_CYCLES.get(i.opcode, 0) for i in path) / tiles
    row = Row(
        target=target,
        kernel=name,
        tokens=tokens,
        vgprs=fields["vgpr_count"],
        sgprs=fields["sgpr_count"],
        scratch_bytes=fields["private_segment_fixed_size"],
        spills=fields["vgpr_spill_count"] + fields["sgpr_spill_count"],
        lds_bytes=fields["group_segment_fixed_size"],
        code_bytes=code[-1].address - code[0].address,
        loop_bytes=sum(i.size_bytes for i in path),
        dots_per_tile_token=dots / tiles / tokens,
        weight_loads_per_tile_bytes=len(loads) * 16 * LANES / tiles,
        decode_ops_per_weight=others / (pairs * WEIGHTS_PER_PAIR),
        waits=" ".join(str(w) for w in dict.fromkeys(waits)),
        tiles_in_flight=in_flight,
        cycles_per_tile=cycles,
        lds_cycles_per_tile=lds_cycles,
        hazards=len(unguarded_reads(code)),
        faults=[],
    )
    row.faults = faults_of(row, code, path, waits)
    return row


def faults_of(
    row: Row, code: list[Instruction], path: list[Instruction], waits: list[int]
) -> list[str]:
    opcodes = Counter(i.opcode for i in code)
    indexed = [o for o in opcodes if o.startswith(("v_movrel", "scratch_"))]
    other_loads = [
        i.text
        for i in path
        if i.opcode.startswith(("global_load", "flat_", "buffer_")) and not i.is_weight_load
    ]
    narrow = [i.text for i in path if i.is_weight_load and i.opcode != "global_load_b128"]
    addresses = [re.sub(r"^\S+ v\[[^\]]*\], ", "", i.text) for i in path if i.is_weight_load]
    rounds = len(addresses) // LOADS_PER_PAIR
    per_round = [
        len(set(addresses[r * LOADS_PER_PAIR : (r + 1) * LOADS_PER_PAIR])) for r in range(rounds)
    ]
    lds_wanted = max(row.tokens * WAVES * LANES * 4, ONE_TOKEN_LDS_BYTES * (row.tokens == 1))
    checks = [
        (row.vgprs <= MAX_VGPRS, f"{row.vgprs} VGPRs, at most {MAX_VGPRS}"),
        (row.scratch_bytes == 0, f"{row.scratch_bytes} bytes of scratch"),
        (row.spills == 0, f"{row.spills} spills"),
        (not indexed, f"indexed registers: {', '.join(indexed)}"),
        (not other_loads, f"vector loads in the main loop beside the weights: {other_loads[:1]}"),
        (not narrow, f"a weight load that is not global_load_b128: {narrow[:1]}"),
        (row.weight_loads_per_tile_bytes == 1536, f"{row.weight_loads_per_tile_bytes} B a tile"),
        (all(n == LOADS_PER_PAIR for n in per_round), f"loaded twice: {per_round}"),
        (row.dots_per_tile_token == 16, f"{row.dots_per_tile_token} dot2 a token a tile, not 16"),
        (
            row.decode_ops_per_weight <= MAX_DECODE_OPS,
            f"{row.decode_ops_per_weight:.2f} vector operations a weight beside dot2",
        ),
        (row.tiles_in_flight >= 2, f"{row.tiles_in_flight:.1f} tiles in flight, at least 2"),
        (any(waits), f"every wait for weights is for all of them: {row.waits}"),
        (row.cycles_per_tile <= MAX_TILE_CYCLES, f"{row.cycles_per_tile:.0f} cycles a tile"),
        (row.lds_cycles_per_tile <= MAX_LDS_CYCLES, f"{row.lds_cycles_per_tile:.0f} LDS cycles"),
        (row.hazards == 0, f"{row.hazards} reads of scalar registers that may see an old value"),
        (row.lds_bytes == lds_wanted, f"{row.lds_bytes} bytes of LDS, not {lds_wanted}"),
    ]
    return [text for holds, text in checks if not holds]


COLUMNS = (
    ("m", "tokens", "d"),
    ("VGPR", "vgprs", "d"),
    ("SGPR", "sgprs", "d"),
    ("scratch", "scratch_bytes", "d"),
    ("spills", "spills", "d"),
    ("LDS bytes", "lds_bytes", "d"),
    ("dot2 / token tile", "dots_per_tile_token", "g"),
    ("weight bytes / tile", "weight_loads_per_tile_bytes", "g"),
    ("other VALU / weight", "decode_ops_per_weight", ".2f"),
    ("loadcnt waits", "waits", "s"),
    ("tiles in flight", "tiles_in_flight", "g"),
    ("cycles / tile", "cycles_per_tile", ".0f"),
    ("LDS cycles / tile", "lds_cycles_per_tile", "g"),
    ("loop bytes", "loop_bytes", "d"),
    ("SGPR hazards", "hazards", "d"),
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
    parser.add_argument("--json", type=Path, help="also write the rows there")
    arguments = parser.parse_args()
    everything: list[Row] = []
    for code_object in arguments.code_objects:
        target, fields = notes(code_object)
        code = disassemble(code_object)
        rows = [
            measure(target, name, fields[name], code[name])
            for name in sorted(fields, key=lambda n: (len(n), n))
            if re.search(r"_fused_m\d+$", name)
        ]
        print(f"### {target}: fused\n\n{table(rows)}\n")
        everything += rows
    if not everything:
        print("dump_isa.py: no fused kernels found", file=sys.stderr)
        return 2
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in everything], indent=1) + "\n")
    faults = [f"{row.target} {row.kernel}: {fault}" for row in everything for fault in row.faults]
    print("\n".join(faults) if faults else f"{len(everything)} kernels, every bar holds")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
