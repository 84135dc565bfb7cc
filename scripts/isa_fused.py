"""The bars of the fused kernels. The figures of a tile are those of the main loop, followed along
its steady path: around the side table, as its tiles are clean, and through every multiplication."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gfx12_code import Instruction
from gfx12_loops import LDS_READ_CYCLES, loops_of, steady_path, throughput, waited_count
from isa_rows import COMMON_COLUMNS, Column, Row, common_checks, registers_and_memory

TITLE = "fused, one token count each"
NAME = re.compile(r"_fused_m(\d+)$")

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


@dataclass(kw_only=True)
class FusedRow(Row):
    tokens: int
    loop_bytes: int
    dots_per_tile_token: float
    weight_bytes_per_tile: float
    decode_ops_per_weight: float
    waits: str
    tiles_in_flight: float
    cycles_per_tile: float
    lds_cycles_per_tile: float


COLUMNS = (
    Column("m", "tokens"),
    *COMMON_COLUMNS,
    Column("dot2 / token tile", "dots_per_tile_token", "g"),
    Column("weight bytes / tile", "weight_bytes_per_tile", "g"),
    Column("other VALU / weight", "decode_ops_per_weight", ".2f"),
    Column("loadcnt waits", "waits", "s"),
    Column("tiles in flight", "tiles_in_flight", "g"),
    Column("cycles / tile", "cycles_per_tile", ".0f"),
    Column("LDS cycles / tile", "lds_cycles_per_tile", "g"),
    Column("loop bytes", "loop_bytes"),
)


class FusedInstruction(Instruction):
    @property
    def is_work(self) -> bool:
        return self.opcode.startswith("v_dot2_f32_bf16")


def main_loop(code: list[Instruction]) -> tuple[int, int]:
    """The innermost loop that streams weights for x in scalar registers (the other such loop hands
    x from lane to lane by v_readlane)."""
    streams = []
    for first, last in loops_of(code):
        body = code[first : last + 1]
        by_lane = sum(i.opcode.startswith("v_readlane") for i in body) >= LANES
        if any(i.is_weight_load for i in body) and any(i.is_work for i in body) and not by_lane:
            streams.append((first, last))
    if not streams:
        raise ValueError("no loop that streams weights")
    return min(streams, key=lambda bounds: bounds[1] - bounds[0])


def flight(path: list[Instruction]) -> tuple[float, list[int]]:
    """Least number of tiles in flight at any dot product, and the counts waited for."""
    outstanding = 0
    least = 10**9
    waits: list[int] = []
    for lap in range(2):
        for instruction in path:
            if instruction.is_weight_load:
                outstanding += 1
            elif (count := waited_count(instruction)) is not None:
                outstanding = min(outstanding, count)
                if lap:
                    waits.append(count)
            elif instruction.is_work and lap:
                least = min(least, outstanding)
    return least / (LOADS_PER_PAIR / 2), waits


def measure(
    target: str, name: str, fields: dict[str, int], instructions: list[Instruction]
) -> FusedRow:
    code: list[Instruction] = [FusedInstruction.of(i) for i in instructions]
    found = NAME.search(name)
    assert found is not None
    tokens = int(found.group(1))
    path = steady_path(code, *main_loop(code))
    loads = [i for i in path if i.is_weight_load]
    dots = sum(i.is_work for i in path)
    others = sum(i.opcode.startswith("v_") and not i.is_work for i in path)
    pairs = len(loads) / LOADS_PER_PAIR
    tiles = 2 * pairs
    in_flight, waits = flight(path)
    row = FusedRow(
        **registers_and_memory(target, name, fields, code),
        tokens=tokens,
        loop_bytes=sum(i.size_bytes for i in path),
        dots_per_tile_token=dots / tiles / tokens,
        weight_bytes_per_tile=len(loads) * 16 * LANES / tiles,
        decode_ops_per_weight=others / (pairs * WEIGHTS_PER_PAIR),
        waits=" ".join(str(w) for w in dict.fromkeys(waits)),
        tiles_in_flight=in_flight,
        cycles_per_tile=throughput(path, target) / 2 / tiles,  # two SIMDs
        lds_cycles_per_tile=sum(LDS_READ_CYCLES.get(i.opcode, 0) for i in path) / tiles,
    )
    row.faults = faults_of(row, code, path, waits)
    return row


def faults_of(
    row: FusedRow, code: list[Instruction], path: list[Instruction], waits: list[int]
) -> list[str]:
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
        *common_checks(row, code, MAX_VGPRS, lds_wanted),
        (not other_loads, f"vector loads in the main loop beside the weights: {other_loads[:1]}"),
        (not narrow, f"a weight load that is not global_load_b128: {narrow[:1]}"),
        (row.weight_bytes_per_tile == 1536, f"{row.weight_bytes_per_tile} B a tile"),
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
    ]
    return [text for holds, text in checks if not holds]
