"""scripts/gfx12_hazards.py on code that is written down here, and on shipped code robbed of its
waits. What LLVM 19 makes of the kernels looks like the latter: it does not know the hazard."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import code_objects
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from gfx12_code import Instruction
from gfx12_hazards import unguarded_reads

ROOT = Path(__file__).resolve().parents[1]
READ = "v_add_f32_e32 v0, s4, v0"  # from here on, s4 and s5 may be held by the vector unit
READ_AGAIN = "v_mul_f32_e32 v1, s4, v1"


def code_of(*lines: str) -> list[Instruction]:
    """Instructions of four bytes each; "s_branch @2" goes to the third of them."""
    code = []
    for i, line in enumerate(lines):
        text, _, target = line.partition(" @")
        code.append(Instruction(4 * i, 4, text, 4 * int(target) if target else None))
    return code


def stale(*lines: str) -> list[str]:
    return [instruction.text for instruction in unguarded_reads(code_of(*lines, "s_endpgm"))]


@pytest.mark.parametrize(
    "between",
    [
        ["s_mov_b32 s4, s9"],
        ["s_mov_b64 s[4:5], s[8:9]"],
        ["v_cmp_gt_u32_e64 s4, 3, v2"],
        ["s_mov_b32 s4, s9", "s_wait_alu depctr_va_sdst(0)"],
        ["v_cmp_gt_u32_e64 s4, 3, v2", "s_wait_alu depctr_sa_sdst(0)"],
    ],
    ids=["scalar", "pair", "vector", "wait for the other unit", "wait for the scalar unit"],
)
def test_a_read_that_may_be_old(between: list[str]) -> None:
    assert stale(READ, *between, READ_AGAIN) == [READ_AGAIN]


@pytest.mark.parametrize(
    "between",
    [
        ["s_mov_b32 s4, s9", "s_wait_alu depctr_sa_sdst(0)"],
        ["v_cmp_gt_u32_e64 s4, 3, v2", "s_wait_alu depctr_va_sdst(0)"],
        ["v_cmp_gt_u32_e64 s4, 3, v2", "s_and_b32 s20, s5, s21"],  # drains the vector unit
        ["s_mov_b32 s4, s9", "s_load_b32 s30, s[8:9], 0x0"],  # commits everything
        ["s_mov_b32 s6, s9"],  # another pair
    ],
    ids=["scalar waited", "vector waited", "scalar read", "scalar load", "other register"],
)
def test_a_read_that_is_new(between: list[str]) -> None:
    assert stale(READ, *between, READ_AGAIN) == []


def test_a_first_read_sees_every_write() -> None:
    assert stale("s_mov_b32 s4, s9", READ) == []


def test_vcc_counts_too() -> None:
    first = "v_cndmask_b32_e64 v0, v1, v2, vcc_lo"
    again = "v_cndmask_b32_e64 v3, v1, v2, vcc_lo"
    write = "v_cmp_gt_u32_e64 vcc_lo, 3, v2"
    assert stale(first, write, again) == [again]
    assert stale(first, write, "s_wait_alu depctr_va_vcc(0)", again) == []


def test_a_loop_meets_its_own_end() -> None:
    assert stale("s_nop 0", READ, "s_mov_b32 s4, s9", "s_cbranch_scc1 @1") == [READ]


def test_a_wait_on_one_way_is_not_enough() -> None:
    wait = "s_wait_alu depctr_sa_sdst(0)"
    ways = [READ, "s_mov_b32 s4, s9", "s_cbranch_scc1 @4", wait, READ_AGAIN]
    assert stale(*ways) == [READ_AGAIN]


def test_shipped_code_without_its_waits_is_refused(tmp_path: Path) -> None:
    image = code_objects.path("gfx1201", "gather").read_bytes()
    words = list(struct.unpack(f"<{len(image) // 4}I", image[: len(image) // 4 * 4]))
    waits = [i for i, word in enumerate(words) if word >> 16 == 0xBF88]  # s_wait_alu
    assert waits
    for i in waits:
        words[i] = 0xBF800000  # s_nop 0
    robbed = tmp_path / "robbed.co"
    robbed.write_bytes(struct.pack(f"<{len(words)}I", *words) + image[len(image) // 4 * 4 :])
    command = [sys.executable, str(ROOT / "scripts/dump_isa.py"), str(robbed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "reads of scalar registers that may see an old value" in done.stdout
