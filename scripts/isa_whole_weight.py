"""The bars of unpack, gather, pack, check and combine.

Unpack streams whole tiles, so its loop is followed as those of gemm are: along whole, clean tiles.
Of the others the registers, the memory, and the widths of all accesses are looked at: gather reads
single rows, pack and check read no packed tile, or do so once in a weight's life.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from gfx12_code import Instruction
from gfx12_loops import loops_of, steady_path, waited_count
from isa_rows import COMMON_COLUMNS, Column, Row, common_checks, registers_and_memory

MAX_VGPRS = 96  # sixteen waves of a SIMD's 1,536
LOADS_PER_TILE = 3  # of 16 bytes a lane
LANES = 32
LANE_WEIGHTS = 32
TILE_BYTES = 1536
DENSE_TILE_BYTES = 2048
MAX_UNPACK_OPS = 6.0  # a weight: decoding, trading between lanes, addresses
SURVEY_LDS_BYTES = 32 * 1024
PIECES = 4  # loads of 16 bytes that a lane needs for a tile of BF16


class UnpackInstruction(Instruction):
    @property
    def is_work(self) -> bool:
        return self.opcode == "global_store_b128"


@dataclass(kw_only=True)
class UnpackRow(Row):
    name: str
    weight_bytes_per_tile: float
    stored_bytes_per_tile: float
    valu_per_weight: float
    waits: str
    tiles_in_flight: float


UNPACK_TITLE = "unpack, one alignment of the output's rows each"
UNPACK_NAME = re.compile(r"_unpack_a(\d+)$")
UNPACK_COLUMNS = (
    Column("kernel", "name", "s"),
    *COMMON_COLUMNS,
    Column("weight bytes / tile", "weight_bytes_per_tile", "g"),
    Column("stored bytes / tile", "stored_bytes_per_tile", "g"),
    Column("VALU / weight", "valu_per_weight", ".2f"),
    Column("loadcnt waits", "waits", "s"),
    Column("tiles in flight", "tiles_in_flight", "g"),
)


def flight(path: list[Instruction]) -> tuple[float, list[int]]:
    """Most tiles in flight, and the counts waited for."""
    outstanding = most = 0
    waits: list[int] = []
    for lap in range(2):
        for instruction in path:
            if instruction.is_weight_load:
                outstanding += 1
                most = max(most, outstanding)
            elif (count := waited_count(instruction)) is not None:
                outstanding = min(outstanding, count)
                if lap:
                    waits.append(count)
    return most / LOADS_PER_TILE, waits


def measure_unpack(
    target: str, name: str, fields: dict[str, int], instructions: list[Instruction]
) -> UnpackRow:
    code: list[Instruction] = [UnpackInstruction.of(i) for i in instructions]

    def weight_loads(bounds: tuple[int, int]) -> int:
        return sum(i.is_weight_load for i in code[bounds[0] : bounds[1] + 1])

    path = steady_path(code, *max(loops_of(code), key=weight_loads))
    loads = [i for i in path if i.is_weight_load]
    tiles = len(loads) / LOADS_PER_TILE
    in_flight, waits = flight(path)
    row = UnpackRow(
        **registers_and_memory(target, name, fields, code),
        name=name.removeprefix("nf12_"),
        weight_bytes_per_tile=len(loads) * 16 * LANES / tiles,
        stored_bytes_per_tile=sum(i.is_work for i in path) * 16 * LANES / tiles,
        valu_per_weight=sum(i.opcode.startswith("v_") for i in path) / tiles / LANE_WEIGHTS,
        waits=" ".join(str(w) for w in dict.fromkeys(waits)),
        tiles_in_flight=in_flight,
    )
    narrow = [i.text for i in path if i.is_weight_load and i.opcode != "global_load_b128"]
    others = [i.text for i in path if i.opcode.startswith("global_load") and not i.is_weight_load]
    tile = [re.sub(r"^\S+ v\[[^\]]*\], ", "", i.text) for i in loads[:LOADS_PER_TILE]]
    checks = [
        *common_checks(row, code, MAX_VGPRS, 0),
        (not narrow, f"a weight load that is not global_load_b128: {narrow[:1]}"),
        (not others, f"vector loads in the main loop beside the weights: {others[:1]}"),
        (len(set(tile)) == LOADS_PER_TILE, f"loaded twice: {tile}"),
        (row.weight_bytes_per_tile == TILE_BYTES, f"{row.weight_bytes_per_tile} B a tile"),
        (
            row.stored_bytes_per_tile == DENSE_TILE_BYTES,
            f"{row.stored_bytes_per_tile} B of a tile stored by 16 bytes, not {DENSE_TILE_BYTES}",
        ),
        (row.valu_per_weight <= MAX_UNPACK_OPS, f"{row.valu_per_weight:.2f} operations a weight"),
        (row.tiles_in_flight >= 2, f"{row.tiles_in_flight:.1f} tiles in flight, at least 2"),
        (any(waits), f"every wait for weights is for all of them: {row.waits}"),
    ]
    row.faults = [text for holds, text in checks if not holds]
    return row


@dataclass(kw_only=True)
class OtherRow(Row):
    name: str
    loads: str
    stores: str
    atomics: str


OTHER_TITLE = "gather, pack, check and combine"
OTHER_NAME = re.compile(r"_(gather_a\d+|pack_\w+|check|gemm_combine)$")
OTHER_COLUMNS = (
    Column("kernel", "name", "s"),
    *COMMON_COLUMNS,
    Column("vector loads", "loads", "s"),
    Column("vector stores", "stores", "s"),
    Column("atomics", "atomics", "s"),
    Column("code bytes", "code_bytes"),
)


def accesses(code: list[Instruction], kind: str) -> Counter[str]:
    """How often each width of global access occurs: {"b128": 4, ...}."""
    return Counter(
        i.opcode.removeprefix(f"global_{kind}_")
        for i in code
        if i.opcode.startswith(f"global_{kind}_")
    )


def measure_other(
    target: str, name: str, fields: dict[str, int], code: list[Instruction]
) -> OtherRow:
    def listed(kind: str) -> str:
        found = accesses(code, kind)
        return ", ".join(f"{found[width]} {width}" for width in sorted(found)) or "none"

    row = OtherRow(
        **registers_and_memory(target, name, fields, code),
        name=name.removeprefix("nf12_"),
        loads=listed("load"),
        stores=listed("store"),
        atomics=listed("atomic"),
    )
    is_survey = "_survey_" in name
    # A whole tile of BF16 arrives by as many loads of 16 bytes as it fills.
    wide_loads = PIECES if re.search(r"_pack_(survey|count|encode)_", name) else 0
    wide_stores = 1 if re.search(r"_gather_", name) else 0
    elsewhere = sorted({i.opcode for i in code if i.opcode.startswith(("flat_", "buffer_"))})
    checks = [
        *common_checks(row, code, MAX_VGPRS, SURVEY_LDS_BYTES if is_survey else 0),
        (not elsewhere, f"accesses through another path than global: {', '.join(elsewhere)}"),
        (accesses(code, "load")["b128"] >= wide_loads, f"a tile of BF16 by {row.loads}"),
        (accesses(code, "store")["b128"] >= wide_stores, f"eight weights stored by {row.stores}"),
    ]
    row.faults = [text for holds, text in checks if not holds]
    return row
