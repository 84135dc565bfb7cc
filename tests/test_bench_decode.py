"""benchmarks/bench_decode.py, small and on a CPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nf12
from nf12 import machine

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import bench_decode

SMALL = [
    "--backend", "cpu", "--layers", "2", "--hidden", "128", "--vocab", "200", "--cached", "16",
    "--batch", "1", "3", "--turns", "2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CEILING_BYTES", {"cpu": 1 << 20})


def run(file: Path, *arguments: str) -> dict[str, Any]:
    bench_decode.main([*SMALL, *arguments, "--output", str(file)])
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def test_a_run_writes_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = run(tmp_path / "out.json")
    assert report["layers"] == 2 and report["hidden"] == 128 and report["differing_weights"] == 0
    hidden, wide, kv = 128, 448, 32
    weights = 2 * (2 * hidden * (hidden + kv) + 3 * hidden * wide) + 200 * hidden
    assert report["dense_bytes"] == 2 * weights
    assert 0.75 < report["packed_bytes"] / report["dense_bytes"] < 0.78
    assert [(row["batch"], row["way"]) for row in report["rows"]] == [(1, "calls"), (3, "calls")]
    for row in report["rows"]:
        assert row["passed"] and 0 < row["nf12_rms_error"] < 0.05 * row["rms_logit"]
        assert row["ratio"] == pytest.approx(row["bf16_us"] / row["nf12_us"], rel=0.01)
        assert row["nf12_tokens_per_s"] == pytest.approx(
            row["batch"] / row["nf12_us"] * 1e6, rel=0.01
        )
        assert row["rest_share"] > 0 and "dense_us" not in row, "no row of bench_gemm"
    out = capsys.readouterr().out
    assert "without linears" in out and "weights that unpack to other bits: 0" in out


def test_the_compiled_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How it is asked for; what the compiler makes of the modules is test_modules' matter."""
    asked = []

    def compile(stack: nn.Module, **options: Any) -> Callable[..., torch.Tensor]:
        asked.append(options)
        return stack.forward

    monkeypatch.setattr(torch, "compile", compile)
    rows = run(tmp_path / "out.json", "--compile")["rows"]
    assert [row["way"] for row in rows] == ["calls", "calls", "compiled", "compiled"]
    assert "rest_us" not in rows[2] and rows[2]["passed"]
    assert len(asked) == 4 and asked[0]["mode"] == "reduce-overhead" and asked[0]["fullgraph"]


def test_a_wrong_weight_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = nf12.Linear.from_linear

    def wrong(linear: nn.Linear) -> nf12.Linear:
        packed = real(linear)
        if linear.weight.shape[0] == 200:
            packed.packed().payload[0, 0, 0] ^= 1  # the last bit of one mantissa
        return packed

    monkeypatch.setattr(nf12.Linear, "from_linear", wrong)
    with pytest.raises(SystemExit, match="values outside the bounds"):
        run(tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["differing_weights"] == 1


def test_wrong_logits_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = nf12.Linear.forward
    monkeypatch.setattr(nf12.Linear, "forward", lambda self, x: real(self, x) * 1.02)
    with pytest.raises(SystemExit, match="values outside the bounds"):
        run(tmp_path / "out.json")


def test_proportions_of_llama_3_8b() -> None:
    sizes = bench_decode.Sizes(32, 4096, 128256, 512, 8)
    shapes = {name: sizes.features(name) for name in (*bench_decode.LINEARS, "head")}
    assert shapes == {
        "q": (4096, 4096), "k": (4096, 1024), "v": (4096, 1024), "o": (4096, 4096),
        "gate": (4096, 14336), "up": (4096, 14336), "down": (14336, 4096),
        "head": (4096, 128256),
    }  # fmt: skip
