"""benchmarks/ab_fused.py: what a token count that is unknown to the compiler costs in registers."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import ab_fused as ab

CLANG = any(shutil.which(f"clang-{version}") for version in range(22, 19, -1))


@pytest.mark.skipif(not CLANG, reason="clang 20 or later is not on PATH")
def test_unknown_tokens_live_in_scratch() -> None:
    rows = {row["kernel"]: row for row in ab.machine_code(("tests/nvidia/variants.cpp",))}
    unknown = rows[ab.RUN_TIME]
    assert unknown["scratch_bytes"] >= 16 * 2 * 4 and unknown["scratch_accesses"] > 0
    assert unknown["lds_bytes"] == 16 * 1024, "room for 16 tokens whatever m is"
    for m in (1, 2, 4, 8):
        known = rows[f"{ab.COMPILE_TIME}{m}"]
        assert known["scratch_bytes"] == known["movrel"] == 0
        assert known["lds_bytes"] == m * 1024


def test_the_plane_of_one_token_halves_the_workgroups() -> None:
    assert ab.workgroups_per_wgp(73, 1024) == 8
    assert ab.workgroups_per_wgp(73, 32 * 1024) == 4
    assert ab.workgroups_per_wgp(120, 1024) == 6, "12 waves of 120 registers a SIMD"


@pytest.mark.parametrize("path", sorted(ab.RESULTS.glob("ab-fused-*.json")), ids=lambda p: p.name)
def test_results_have_checked_values(path: Path) -> None:
    result = json.loads(path.read_text())
    assert len(result["rows"]) == len(ab.SHAPES) * (len(ab.TOKENS) + 1)
    assert all(row["violations"] == 0 for row in result["rows"])
    shipped = [r for r in result["machine_code"]["rows"] if r["kernel"].startswith(ab.SHIPPED)]
    assert len(shipped) == 16 and not any(row["scratch_bytes"] for row in shipped)
