"""What the rows of every kernel's table share: registers, memory, and the bars on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gfx12_code import Instruction
from gfx12_hazards import unguarded_reads


@dataclass(kw_only=True)
class Row:
    """One kernel of one target."""

    target: str
    kernel: str
    vgprs: int
    sgprs: int
    scratch_bytes: int
    spills: int
    lds_bytes: int
    code_bytes: int
    hazards: int
    faults: list[str] = field(default_factory=list)


def registers_and_memory(
    target: str, kernel: str, fields: dict[str, int], code: list[Instruction]
) -> dict[str, Any]:
    """The fields of Row, but for the faults."""
    return {
        "target": target,
        "kernel": kernel,
        "vgprs": fields["vgpr_count"],
        "sgprs": fields["sgpr_count"],
        "scratch_bytes": fields["private_segment_fixed_size"],
        "spills": fields["vgpr_spill_count"] + fields["sgpr_spill_count"],
        "lds_bytes": fields["group_segment_fixed_size"],
        "code_bytes": code[-1].address - code[0].address,
        "hazards": len(unguarded_reads(code)),
    }


Check = tuple[bool, str]


def common_checks(row: Row, code: list[Instruction], max_vgprs: int, lds_bytes: int) -> list[Check]:
    """The bars that every kernel has to meet, each with what to say if it does not."""
    indexed = sorted({i.opcode for i in code if i.opcode.startswith(("v_movrel", "scratch_"))})
    return [
        (row.vgprs <= max_vgprs, f"{row.vgprs} VGPRs, at most {max_vgprs}"),
        (row.scratch_bytes == 0, f"{row.scratch_bytes} bytes of scratch"),
        (row.spills == 0, f"{row.spills} spills"),
        (not indexed, f"indexed registers: {', '.join(indexed)}"),
        (row.lds_bytes == lds_bytes, f"{row.lds_bytes} bytes of LDS, not {lds_bytes}"),
        (row.hazards == 0, f"{row.hazards} reads of scalar registers that may see an old value"),
    ]


@dataclass(frozen=True)
class Column:
    title: str
    field: str
    format: str = "d"


COMMON_COLUMNS = (
    Column("VGPR", "vgprs"),
    Column("SGPR", "sgprs"),
    Column("scratch", "scratch_bytes"),
    Column("spills", "spills"),
    Column("LDS bytes", "lds_bytes"),
    Column("SGPR hazards", "hazards"),
)


def table(columns: tuple[Column, ...], rows: list[Row]) -> str:
    lines = [
        "| " + " | ".join(column.title for column in columns) + " |",
        "|" + "---|" * len(columns),
    ]
    for row in rows:
        cells = (format(getattr(row, column.field), column.format) for column in columns)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
