"""Records of proofs on other machines: the CPU levels (scripts/prove_cpu_levels.py), the operators
with other versions of torch and Python (scripts/prove_operators.py), the GPU kernels on a card
(scripts/prove_nvidia.py) and on an emulator (scripts/prove_rdna4.py)."""

from __future__ import annotations

import json
import re
import sys
import warnings
from pathlib import Path

import pytest

import nf12

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import prove_cpu_levels as proofs
import prove_nvidia as card
import prove_operators as operators
import prove_rdna4 as emulator
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


@pytest.mark.parametrize("name", card.read_records())
def test_card_record_shows_no_difference(name: str) -> None:
    """As long as the record is of these sources, it is of every kernel in the library's list."""
    record = card.read_records()[name]
    listed = (card.ROOT / "csrc" / "runtime" / "kernels.hpp").read_text()
    kernels = {f"nf12_{kernel}" for kernel in re.findall(r"\bK\((\w+)\)", listed)}
    stale = card.files_hash(record["sources"]) != record["source_hash"]
    assert len(kernels) > 30 and (stale or kernels <= set(record["cases"]))
    assert record["tests"] > 40 and record["failed"] == 0
    assert set(record["sanitizer"]) == set(card.SANITIZERS)
    for tool, result in record["sanitizer"].items():
        assert result["ran"], f"{tool}: {result.get('why')}"
        found = any(result["errors"].values())
        assert found == ("explanation" in result), "an error, and why it is none, go together"
        blind = result.get("barriers_not_followed", {})
        assert not blind or blind[card.BARRIER_TEST] > 0, "shown by a test that has no race"
        assert set(blind) <= {card.BARRIER_TEST, *card.USE_BARRIERS}
    assert all(count >= 8 for count in record["cases"].values())
    if stale:
        warnings.warn(f"{name}, {record['date']}, is stale", stacklevel=1)


def test_what_a_sanitizer_says_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    passed, clean = "ok   a\n1 of 1 tests passed\n", "========= ERROR SUMMARY: 0 errors\n"
    answers = {
        "clean": (0, passed + clean),
        "found": (0, passed + clean.replace("0", "3")),
        "host_only": (255, f"{passed}========= Error: {card.NOTHING_LAUNCHED}\n"),
        "late": (card.TOO_LATE, "========= COMPUTE-SANITIZER\n"),
    }
    program = "nvidia_fused_test"
    monkeypatch.setattr(card, "programs", lambda: [program])
    monkeypatch.setattr(
        card, "run_all", lambda jobs, *_: [(program, *answers[test]) for _, test in jobs]
    )
    tests = [(program, name) for name in answers]
    assert card.run_sanitizer("memcheck", tests) == {
        "ran": True,
        "errors": {program: 3},
        "not_in_time": [f"{program} late"],
    }
    answers["clean"] = (127, "no such file\nno compute-sanitizer")
    assert card.run_sanitizer("memcheck", tests) == {"ran": False, "why": "no compute-sanitizer"}


def test_a_card_record_names_what_was_compiled() -> None:
    (record,) = card.read_records().values()
    for source in ("csrc/gemm/fused/kernel.hpp", "csrc/arch/nvidia/policy.hpp"):
        assert source in record["sources"]
    assert card.files_hash(["csrc/gone.hpp"]) == ""
    assert card.files_hash(record["sources"][1:]) != card.files_hash(record["sources"])


def test_the_readme_shows_the_results() -> None:
    """The tables of speed-ups are those that benchmarks/table.py makes of benchmarks/results."""
    readme = (table.RESULTS.parent.parent / "README.md").read_text()
    assert table.table() in readme
    for device, text in table.gpu_tables().items():
        assert text in readme, device


def test_the_table_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def row(k: int, m: int, ratio: float, escapes: str = "3.3e-4") -> dict[str, object]:
        times = {"dense_us": 10 * ratio, "nf12_us": 10.0, "violations": 0}
        return {"k": k, "n": 64, "m": m, "escapes": escapes} | times

    rows = [row(k, m, ratio) for k, ratio in ((32, 2.0), (64, 0.5)) for m in (1, 2, 8)]
    rows += [row(32, 16, 9.0), row(32, 1, 9.0, "raw")]
    for name, content in (("a-2026-01-02", rows), ("b-2026-01-03", [row(32, 1, 9.0, "0")])):
        report = {"device": "NVIDIA H200", "mode": "cold", "rows": content}
        (tmp_path / f"{name}.json").write_text(json.dumps(report))
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    assert table.gpu_tables()["NVIDIA H200"].splitlines() == [
        "| k x n | m = 1 | m = 8 |", "| --- | ---: | ---: |", "| 32 x 64 | 2.00 | 2.00 |",
        "| 64 x 64 | 0.50 | 0.50 |", "| geomean | **1.00** | **1.00** |",
    ]  # fmt: skip


@pytest.mark.parametrize("path", sorted(emulator.RECORDS.glob("emulator-*.json")), ids=str)
def test_emulator_record_shows_no_failure(path: Path) -> None:
    """And is of the very code objects of this build, else it is named as stale."""
    record = json.loads(path.read_text())
    for name, least in zip(emulator.TESTS, (50, 20, 40), strict=True):
        counts = record["counts"][name]
        assert counts["passed"] >= least, name
        assert counts["failures"] == counts["errors"] == counts["skipped"] == 0, name
    assert set(record["code_objects"]) == set(emulator.UNITS)
    if record["code_objects"] != emulator.object_hashes():
        warnings.warn(f"{path.name}, {record['date']}, is of another build", stacklevel=1)
