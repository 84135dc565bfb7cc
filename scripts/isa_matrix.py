"""The bars of the matrix kernels. The figures of a tile are those of the loop over pairs of tile
columns, followed along its steady path: past the branches around the side table."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gfx12_code import Instruction
from gfx12_loops import LDS_READ_CYCLES, loops_of, steady_path, throughput, waited_count
from isa_rows import COMMON_COLUMNS, Column, Row, common_checks, registers_and_memory

TITLE = "matrix, one number of tokens a block each"
NAME = re.compile(r"_matrix_t(\d+)$")

LOADS_PER_TILE = 3  # of 16 bytes a lane
WMMAS_PER_TILE = 4  # for 16 tokens
PITCH_BYTES = 144  # of a token in shared memory
TILE_COLUMNS = 2  # of one round of the loop
LANE_WEIGHTS = 32
MAX_VGPRS = 256
MIN_APART = 8  # matrix instructions or loads between a barrier's signal and its wait
MAX_TILE_CYCLES = 280.0
MAX_LDS_CYCLES = 400


@dataclass(kw_only=True)
class MatrixRow(Row):
    tokens: int
    tile_rows: int
    wmmas_per_tile: float
    weight_bytes_per_tile: float
    valu_per_weight: float
    waits: str
    tiles_in_flight: float
    apart: int
    cycles_per_tile: float
    lds_cycles_per_tile: float


COLUMNS = (
    Column("tokens", "tokens"),
    Column("tile rows a wave", "tile_rows"),
    *COMMON_COLUMNS,
    Column("WMMA / tile", "wmmas_per_tile", "g"),
    Column("weight bytes / tile", "weight_bytes_per_tile", "g"),
    Column("other VALU / weight", "valu_per_weight", ".2f"),
    Column("loadcnt waits", "waits", "s"),
    Column("tiles in flight", "tiles_in_flight", "g"),
    Column("signal to wait", "apart"),
    Column("cycles / tile", "cycles_per_tile", ".0f"),
    Column("LDS cycles / tile", "lds_cycles_per_tile", "g"),
)


class MatrixInstruction(Instruction):
    @property
    def is_work(self) -> bool:
        return self.opcode.startswith("v_wmma_f32_16x16x16_bf16")


def main_loop(code: list[Instruction]) -> tuple[int, int]:
    """The loop that streams weights and has the most matrix instructions."""

    def wmmas(bounds: tuple[int, int]) -> int:
        return sum(i.is_work for i in code[bounds[0] : bounds[1] + 1])

    streams = [
        (first, last)
        for first, last in loops_of(code)
        if any(i.is_weight_load for i in code[first : last + 1])
    ]
    if not streams:
        raise ValueError("no loop that streams weights")
    return max(streams, key=wmmas)


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
            elif (count := waited_count(instruction)) is not None:
                queue = queue[len(queue) - count :] if count < len(queue) else queue
                if lap:
                    waits.append(count)
            elif instruction.is_work and lap:
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
            instruction.is_work or instruction.opcode.startswith(("global_load", "ds_load"))
        ):
            count += 1
    return least


def measure(
    target: str, name: str, fields: dict[str, int], instructions: list[Instruction]
) -> MatrixRow:
    code: list[Instruction] = [MatrixInstruction.of(i) for i in instructions]
    found = NAME.search(name)
    assert found is not None
    path = steady_path(code, *main_loop(code))
    loads = [i for i in path if i.is_weight_load]
    wmmas = sum(i.is_work for i in path)
    others = sum(i.opcode.startswith("v_") and not i.is_work for i in path)
    tiles = len(loads) / LOADS_PER_TILE
    in_flight, waits = flight(path)
    row = MatrixRow(
        **registers_and_memory(target, name, fields, code),
        tokens=int(found.group(1)),
        tile_rows=int(tiles / TILE_COLUMNS),
        wmmas_per_tile=wmmas / tiles,
        weight_bytes_per_tile=len(loads) * 16 * 32 / tiles,
        valu_per_weight=others / tiles / LANE_WEIGHTS,
        waits=" ".join(str(w) for w in dict.fromkeys(waits)),
        tiles_in_flight=in_flight,
        apart=least_apart(path),
        cycles_per_tile=throughput(path, target) / 2 / tiles,  # two SIMDs
        lds_cycles_per_tile=sum(LDS_READ_CYCLES.get(i.opcode, 0) for i in path) / tiles,
    )
    row.faults = faults_of(row, code, path, waits)
    return row


def faults_of(
    row: MatrixRow, code: list[Instruction], path: list[Instruction], waits: list[int]
) -> list[str]:
    narrow = [i.text for i in path if i.is_weight_load and i.opcode != "global_load_b128"]
    stages = {  # halves of shared memory that are written
        int(offset.group(1)) // (row.lds_bytes // 2) if offset else 0
        for i in path
        if i.opcode.startswith("ds_store")
        for offset in [re.search(r"offset:(\d+)", i.text)]
    }
    wanted = WMMAS_PER_TILE * row.tokens // 16
    checks = [
        *common_checks(row, code, MAX_VGPRS, 2 * PITCH_BYTES * row.tokens),
        (not narrow, f"a weight load that is not global_load_b128: {narrow[:1]}"),
        (row.tile_rows in (1, 2), f"loads of {row.tile_rows} tile rows a column"),
        (row.wmmas_per_tile == wanted, f"{row.wmmas_per_tile} WMMA a tile, not {wanted}"),
        (row.tiles_in_flight >= 2, f"{row.tiles_in_flight:.1f} tiles in flight, at least 2"),
        (all(waits), f"a wait for every load: {row.waits}"),
        (stages == {0, 1}, f"x is stored to {len(stages)} stage"),
        (row.apart >= MIN_APART, f"{row.apart} between signal and wait, at least {MIN_APART}"),
        (row.cycles_per_tile <= MAX_TILE_CYCLES, f"{row.cycles_per_tile:.0f} cycles a tile"),
        (row.lds_cycles_per_tile <= MAX_LDS_CYCLES, f"{row.lds_cycles_per_tile:.0f} LDS cycles"),
    ]
    return [text for holds, text in checks if not holds]
