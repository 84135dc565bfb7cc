"""The command `nf12 bench`."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import nf12
from nf12 import bench, machine
from nf12.cli import app, progress

SMALL = ("--backend", "cpu", "--shapes", "256x128,192x100", "--m", "1,9")


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NF12_LLC_BYTES", str(1 << 16))
    monkeypatch.setattr(machine, "_CEILING_BYTES", {"cpu": 1 << 20})


def bench_command(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", *arguments])


def test_the_table() -> None:
    done = bench_command(*SMALL)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "backend cpu" in lines[0] and "cold" in lines[0]
    assert lines[1].split()[-5:] == ["faster", "GB/s", "of", "read", "wrong"]
    assert [line.split()[:4] for line in lines[2:6]] == [
        [k, "x", n, m] for k, n in (("256", "128"), ("192", "100")) for m in ("1", "9")
    ]
    assert lines[6].startswith("m 1, escapes 3.3e-4: ") and len(lines) == 8
    assert done.stderr == ""


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_json(backend: str) -> None:
    done = bench_command(*SMALL, "--backend", backend, "--escapes", "0,raw", "--warm", "--json")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["mode"] == "warm" and report["backend"] == backend
    assert [(row["escapes"], row["violations"]) for row in report["rows"]] == [
        ("0", 0), ("0", 0), ("raw", 0), ("raw", 0),
    ] * 2  # fmt: skip


def test_one_kernel_by_name() -> None:
    done = bench_command(*SMALL, "--kernel", "portable", "--json")
    assert {row["kernel"] for row in json.loads(done.stdout)["rows"]} == {"portable"}


def test_what_a_named_kernel_does_not_take_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = bench.gemm_operands

    def picky(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        if x.shape[0] > 8:
            raise ValueError("nf12::gemm: kernel portable takes at most 8 tokens: m 9\nmore")
        return real(x, *rest)

    monkeypatch.setattr(bench, "gemm_operands", picky)
    done = bench_command(*SMALL, "--kernel", "portable", "--json")
    assert done.exit_code == 0
    assert [row["m"] for row in json.loads(done.stdout)["rows"]] == [1, 1]
    assert done.stderr.splitlines()[0] == (
        "left out: 256x128, m 9: nf12::gemm: kernel portable takes at most 8 tokens: m 9"
    )


def test_a_wrong_value_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "gemm_operands", lambda x, *rest: x.new_ones(x.shape[0], rest[0][3]))
    assert bench_command(*SMALL).exit_code == 1


@pytest.mark.parametrize(
    ("option", "value", "text"),
    (
        ("--backend", "vulkan", "must be one of auto"),
        ("--shapes", "4096", "write k x n as"),
        ("--shapes", "0x16", "write k x n as"),
        ("--m", "1,x", "write 1,8,64"),
        ("--m", "0", "write 1,8,64"),
        ("--escapes", "lots", "a rate from 0"),
        ("--kernel", "fused", "has no kernel"),
    ),
)
def test_wrong_usage_is_2(option: str, value: str, text: str) -> None:
    done = bench_command(*SMALL, option, value)
    assert done.exit_code == 2 and text in " ".join(done.stderr.split())


def test_a_backend_that_is_not_there_is_2() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = bench_command("--backend", "hip")
    assert done.exit_code == 2
    assert done.stderr.startswith("nf12 bench: nf12: backend 'hip' is not available: ")


def test_progress_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert list(progress.counted(iter("abc"), "measuring", 3)) == ["a", "b", "c"]
    assert nf12.kernels("torch") == ()
