"""benchmarks/bench_host.py: runs on a CPU, checks values, and writes what docs and issues quote."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import bench_host


@pytest.fixture(autouse=True)
def _threads() -> object:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    command = ["bench_host.py", "--calls", "2", "--batches", "2", "--output", str(path)]
    monkeypatch.setattr(sys, "argv", command)
    bench_host.main()


def test_it_writes_every_mode_and_column(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(monkeypatch, tmp_path / "host.json")
    report = json.loads((tmp_path / "host.json").read_text())
    assert [row["mode"] for row in report["rows"]] == list(bench_host.MODES)
    for row in report["rows"]:
        assert row["violations"] == 0
        assert all(row[f"{name}_us"] > 0 for name in bench_host.COLUMNS)
    assert report["features"] == 64 and report["host"] and report["commit"]


def test_wrong_values_make_it_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = bench_host.contenders

    def wrong(*arguments: object) -> dict[str, bench_host.Call]:
        calls = real(*arguments)  # type: ignore[arg-type]
        return calls | {"op": lambda: calls["op"]() + 1}

    monkeypatch.setattr(bench_host, "contenders", wrong)
    with pytest.raises(SystemExit, match="values outside the bounds"):
        run(monkeypatch, tmp_path / "host.json")
    rows = json.loads((tmp_path / "host.json").read_text())["rows"]
    assert all(row["violations"] == 64 for row in rows)
