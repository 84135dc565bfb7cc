"""Records of proofs on other machines: the CPU levels (scripts/prove_cpu_levels.py), and the
operators with other versions of torch and Python (scripts/prove_operators.py)."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import pytest

import nf12

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import prove_cpu_levels as proofs
import prove_operators as operators
import table

RECORDS = proofs.read_records()


def test_every_level_is_known() -> None:
    assert tuple(nf12.info()["cpu"]["levels"]) == proofs.LEVELS


@pytest.mark.parametrize("name", RECORDS)
def test_record_shows_no_difference(name: str) -> None:
    record = RECORDS[name]
    assert record["sources"] == list(proofs.SOURCES)
    assert len(record["source_hash"]) == len(record["library_sha256"]) == 64
    for level, result in record["levels"].items():
        assert level in proofs.LEVELS
        assert result["cases"] > 100 and result["differences"] == 0, level


def test_stale_records_are_named() -> None:
    """A change under csrc/format or csrc/cpu outdates the records: CI goes on, and says so."""
    supported = tuple(nf12.info()["cpu"]["supported"])
    print(proofs.format_table(supported))
    for level, state, evidence in proofs.states(supported):
        if state in ("stale", "unproven"):
            warnings.warn(f"CPU level {level} is {state}: {evidence}", stacklevel=1)


def test_a_changed_source_makes_a_record_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    record = {
        "date": "2026-01-01",
        "source_hash": proofs.source_hash(),
        "levels": {"amx": {"cases": 1000, "differences": 0}},
    }
    monkeypatch.setattr(proofs, "read_records", lambda: {"r.json": record})
    assert dict(row[:2] for row in proofs.states(()))["amx"] == "proven"
    assert dict(row[:2] for row in proofs.states(()))["avx2"] == "unproven"
    record["source_hash"] = "0" * 64
    assert dict(row[:2] for row in proofs.states(()))["amx"] == "stale"


@pytest.mark.parametrize("path", sorted(operators.RECORDS.glob("operators-*.json")), ids=str)
def test_operator_record_shows_no_failure(path: Path) -> None:
    record = json.loads(path.read_text())
    counts = record["counts"]
    assert counts["passed"] > 400
    assert counts["failures"] == counts["errors"] == counts["skipped"] == 0
    assert len(record["source_hash"]) == len(record["library_sha256"]) == 64
    if record["source_hash"] != proofs.source_hash(tuple(record["sources"])):
        warnings.warn(f"{path.name}, {record['date']}, is stale", stacklevel=1)


def test_the_readme_shows_the_results() -> None:
    """The table of speed-ups is the one that benchmarks/table.py makes of benchmarks/results."""
    assert table.table() in (table.RESULTS.parent.parent / "README.md").read_text()
