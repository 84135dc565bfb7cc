"""benchmarks/bench_codec.py: runs on a CPU, its part for GPUs too, and refuses wrong results."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import bench_codec

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _threads() -> object:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(monkeypatch: pytest.MonkeyPatch, path: Path) -> dict[str, object]:
    command = ["bench_codec.py", "--shapes", "70x40", "--threads", "1", "--seconds", "0.001"]
    monkeypatch.setattr(sys, "argv", [*command, "--output", str(path)])
    monkeypatch.setattr(bench_codec, "ROTATED_BYTES", 1 << 14)
    bench_codec.main()
    report: dict[str, object] = json.loads(path.read_text())
    return report


def gpu_rows(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    monkeypatch.setattr(bench_codec, "cache_bytes", lambda _: 20_000)
    options = argparse.Namespace(shapes=[(70, 40)], seconds=0.001)
    return bench_codec.bench_gpu(options, CPU)


def test_cpu_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = run(monkeypatch, tmp_path / "codec.json")
    rows = report["rows"]
    assert isinstance(rows, list)
    assert [row["escapes"] for row in rows] == list(bench_codec.KINDS)
    assert all(row["violations"] == 0 and row["pack_gb_per_s"] > 0 for row in rows)
    assert report["driver"] is None


def test_gpu_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPU tensors, where no graph is captured: the rest is the same."""
    rows = gpu_rows(monkeypatch)
    assert [row["escapes"] for row in rows] == list(bench_codec.KINDS)
    clean, noise = rows[0], rows[-1]
    assert clean["variants"] == 8 and clean["violations"] == 0
    ratio = clean["unpack_moved_gb_per_s"] / clean["ceiling_moved_gb_per_s"]  # type: ignore[operator]
    assert clean["unpack_of_ceiling"] == pytest.approx(ratio, rel=0.2)
    bytes_moved = 40 * 70 * (2 + clean["bits_a_weight"] / 8)  # type: ignore[operator]
    moved = clean["unpack_moved_gb_per_s"] * clean["unpack_us"] * 1e3  # type: ignore[operator]
    assert moved == pytest.approx(bytes_moved, rel=0.3)
    assert noise["bits_a_weight"] > 28  # type: ignore[operator]


@pytest.mark.parametrize("operator", ["unpack", "gather", "pack"])
def test_wrong_results_end_it(monkeypatch: pytest.MonkeyPatch, operator: str) -> None:
    real = getattr(torch.ops.nf12, operator)
    calls = 0

    def wrong(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        result = real(*arguments)
        if operator == "pack":  # as if that of the GPU had chosen other bits than that of the CPU
            result[0][0, 0, 0] ^= calls % 2
        else:
            result.view(torch.int16)[0, 0] ^= 1
        return result

    operators = argparse.Namespace(
        **{name: getattr(torch.ops.nf12, name) for name in ("pack", "unpack", "gather", "check")}
    )
    setattr(operators, operator, wrong)
    monkeypatch.setattr(bench_codec, "OPERATORS", operators)
    with pytest.raises(SystemExit, match="wrong results"):
        gpu_rows(monkeypatch)
