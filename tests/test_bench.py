"""nf12.bench and benchmarks/bench_gemm.py: result files, checked values, how time is taken."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_graphs import FakeGraphs
from gpu_standin import StandIn

import nf12
from nf12 import bench, functional, machine, timing
from nf12.backend import introspection

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import bench_gemm

CPU = torch.device("cpu")
SMALL = ["--shapes", "256x128", "192x100", "--m", "1", "70", "--seconds", "0"]
HEAD = {"device", "backend", "torch", "nf12", "date", "mode", "threads", "read_gb_per_s", "commit"}
FIELDS = {
    "k", "n", "m", "escape_rate", "dense_us", "fp32_us", "nf12_us", "kernel", "gb_per_s",
    "violations", "escapes", "base", "timed_as", "copies", "checked_rows",
}  # fmt: skip


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NF12_LLC_BYTES", str(1 << 16))
    monkeypatch.setattr(machine, "_CEILING_BYTES", {"cpu": 1 << 20})


def run(*arguments: str) -> None:
    bench_gemm.main(arguments)


@pytest.mark.parametrize("mode", ["cold", "warm"])
def test_a_cpu_run_writes_its_file(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "out.json"
    run(*SMALL, "--mode", mode, "--escapes", "3.3e-4", "raw", "--output", str(file))
    report = json.loads(file.read_text())
    assert report.keys() >= HEAD and report["mode"] == mode
    assert report["read_gb_per_s"] > 0 and report["threads"] == torch.get_num_threads()
    rows = report["rows"]
    assert [(r["k"], r["escapes"], r["m"]) for r in rows] == [
        (k, escapes, m) for k in (256, 192) for escapes in ("3.3e-4", "raw") for m in (1, 70)
    ]
    for row in rows:
        assert row.keys() == FIELDS
        assert row["violations"] == 0 and row["checked_rows"] == min(row["m"], 64)
        assert (row["copies"] > 1) == (mode == "cold")
        assert row["kernel"] in nf12.kernels("cpu")
    out = capsys.readouterr().out
    assert out.count("geomean") == 4 and str(file) in out


def test_a_named_kernel(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    run(*SMALL, "--kernel", "portable", "--output", str(file))
    assert {row["kernel"] for row in json.loads(file.read_text())["rows"]} == {"portable"}


def test_a_wrong_value_fails_after_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = bench.gemm_operands

    def wrong(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        y = real(x, *rest)
        y[-1, 3] += 0.5
        return y

    monkeypatch.setattr(bench, "gemm_operands", wrong)
    file = tmp_path / "out.json"
    with pytest.raises(SystemExit, match="values outside the bounds"):
        run(*SMALL, "--output", str(file))
    assert [row["violations"] for row in json.loads(file.read_text())["rows"]] == [1] * 4


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit, match="backend 'hip' is not available"):
        run("--backend", "hip", "--output", "-")


def test_hip_in_the_host_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_gemm, "device_of", lambda backend: CPU)
    for module in (nf12, functional):
        monkeypatch.setattr(module, "resolve_backend", lambda name, device: nf12.Backend.HIP)
    monkeypatch.setattr(functional, "gpu_index", lambda index: 0)
    driver, file = StandIn(("gfx1201", 32)), tmp_path / "out.json"
    try:
        with driver.on(0):
            run("--backend", "hip", "--shapes", "128x64", "--m", "1", "16", "--seconds", "0",
                "--output", str(file))  # fmt: skip
    finally:
        introspection().pretend_gpu("", -1)
    report = json.loads(file.read_text())
    assert report["backend"] == "hip"
    kernels = [(row["m"], row["kernel"], row["violations"]) for row in report["rows"]]
    assert kernels == [(1, "fused", 0), (16, "matrix", 0)]
    assert {"pack_survey_a16", "gemm_fused_m1", "gemm_matrix_t16"} <= set(driver.kernels())


# ---- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [nf12.Backend.CPU, nf12.Backend.TORCH])
def test_escapes_are_where_they_were_asked_for(backend: nf12.Backend) -> None:
    def tiles(escapes: str) -> tuple[bench.Weight, Any]:
        weight = bench.make_weight(1024, 512, escapes, CPU, backend, cold=False)
        assert weight.packed[0].unpack().equal(weight.dense[0])
        return weight, weight.packed[0].tile_counts

    weight, counts = tiles("0")
    assert weight.escape_rate == 0 and counts.clean == 512
    weight, counts = tiles("3.3e-4")
    assert weight.escape_rate == pytest.approx(3.3e-4, rel=0.4)
    assert 20 < counts.listed < 90 and counts.raw == 0
    weight, counts = tiles("1e-2")
    assert weight.escape_rate == pytest.approx(1e-2, rel=0.1) and counts.listed == 512
    weight, counts = tiles("raw")
    assert counts.raw == 512


@pytest.mark.parametrize("k", sorted({k for k, _ in (*bench.SHAPES, *bench.CPU_SHAPES)}))
def test_no_default_shape_has_the_base_without_scaling(k: int) -> None:
    weight = bench.make_weight(k, 64, "3.3e-4", CPU, nf12.Backend.CPU, cold=False)
    assert weight.packed[0].base != 112


@pytest.mark.parametrize("escapes", ["all", "-1", "0.5", "nan", ""])
def test_escapes_that_are_none(escapes: str) -> None:
    with pytest.raises(ValueError, match=r"'raw', or a rate from 0 to 0\.05"):
        bench.escape_pattern(escapes)


def test_cold_copies_exceed_the_cache_twice() -> None:
    weight = bench.make_weight(256, 256, "0", CPU, nf12.Backend.CPU, cold=True)
    packed = weight.packed
    assert sum(p.nbytes for p in packed) >= 2 * (1 << 16) > sum(p.nbytes for p in packed[:-1])
    assert len({p.payload.data_ptr() for p in packed}) == len(packed) == len(weight.dense)


# ---- how time is taken ---------------------------------------------------------------------------


def test_graphs_take_turns_over_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """All turns are enqueued before the host waits once, and copies come round."""
    fake = FakeGraphs(monkeypatch)

    def call(us: int) -> timing.Call:
        def run(copy: int) -> torch.Tensor:
            fake.log.append(f"c{us}@{copy}")
            return torch.full((1,), float(us + copy))

        return run

    dense, ours = timing.rotate(
        (call(20), call(10)), 2, torch.device("cuda"), calls_per_turn=4, turns=3, capturable=True
    )
    assert (round(dense.us, 6), round(ours.us, 6)) == (20, 10)
    assert dense.is_graph and dense.result.item() == 21 and ours.result.item() == 11
    turn = [f"c{us}@{copy}" for us in (20, 10) for copy in (0, 1, 0, 1)]
    assert fake.log == ["c20@0", "c10@0", *turn * 4, "wait"]


def test_calls_that_cannot_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGraphs(monkeypatch)

    def call(copy: int) -> torch.Tensor:
        fake.clock_ms += 0.03
        return torch.ones(1)

    options: dict[str, Any] = {"calls_per_turn": 4, "turns": 3}
    (times,) = timing.rotate([call], 2, torch.device("cuda"), capturable=False, **options)
    assert not times.is_graph and round(times.us, 6) == 30

    def refuse(graph: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    with pytest.warns(UserWarning, match="since capture failed: operation not permitted"):
        (times,) = timing.rotate([call], 2, torch.device("cuda"), capturable=True, **options)
    assert not times.is_graph and round(times.us, 6) == 30


def test_a_host_turn_goes_on_to_the_next_copy() -> None:
    seen: list[int] = []

    def call(copy: int) -> torch.Tensor:
        seen.append(copy)
        return torch.full((1,), float(copy))

    (times,) = timing.rotate([call], 3, CPU, calls_per_turn=2, turns=2, capturable=True)
    assert seen == [0, 1, 2, 0, 1] and times.result.item() == 1 and times.us > 0


def test_a_graph_is_long_enough_and_holds_every_copy() -> None:
    def calls(k: int, n: int, copies: int, m: int) -> int:
        weight = SimpleNamespace(k=k, n=n, dense=[None] * copies)
        return bench.calls_per_turn(weight, m)  # type: ignore[arg-type]

    assert calls(896, 4864, 31, 1) == 3 * 31
    assert calls(4096, 4096, 8, 1) == 48
    assert calls(25600, 5120, 2, 4096) == 2
    assert all(calls(4096, 14336, 3, m) % 3 == 0 for m in (1, 64, 512, 4096))


def test_a_row_of_an_nvidia_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of both forms beside torch.mm's, on a GPU that is none."""
    fake, gpu = FakeGraphs(monkeypatch), torch.device("cuda", 0)
    weight = bench.make_weight(256, 128, "3.3e-4", CPU, nf12.Backend.CPU, cold=True, single=False)
    weight = dataclasses.replace(weight, backend=nf12.Backend.CUDA)
    x, forms = bench.make_tokens(100, 256, CPU), []

    def gemm(x: torch.Tensor, operands: Any, bias: None, backend: nf12.Backend) -> torch.Tensor:
        early = introspection().dependent_launch()
        forms.append(early)
        fake.log.append(f"c{20 if early else 30}@0")
        y: torch.Tensor = torch.ops.nf12.gemm(x, *operands, bias)
        return y if early else y + 1

    monkeypatch.setattr(bench.Weight, "device", gpu)
    monkeypatch.setattr(bench, "make_tokens", lambda m, k, device: x)
    monkeypatch.setattr(bench, "gemm_operands", gemm)
    monkeypatch.setattr(bench, "select", lambda m, n, k, device: nf12.Selection("cuda", "stream"))
    row = bench.measure(weight, 100)
    assert isinstance(row, bench.Row)
    assert (round(row.nf12_us, 6), round(row.nf12_us_plain or 0, 6)) == (20, 30)
    assert row.kernel == "stream" and row.timed_as == "graph" and row.fp32_us is None
    assert row.checked_rows == 64 and row.violations == 64 * 128, "of the plain form alone"
    calls = bench.calls_per_turn(weight, 100)
    assert forms == [True, False] + [True] * calls + [False] * calls


def test_plain_is_without_dependent_launch() -> None:
    c, seen = introspection(), []

    def call(copy: int) -> torch.Tensor:
        seen.append(c.dependent_launch())
        return torch.ones(1)

    bench.plain(call)(0)
    assert seen == [False] and c.dependent_launch()


# ---- what comes out ------------------------------------------------------------------------------


def row(**fields: Any) -> bench.Row:
    values = {
        "k": 64, "n": 16, "m": 1, "escapes": "0", "escape_rate": 0.0, "base": 110,
        "kernel": "stream", "dense_us": 12.34567, "fp32_us": None, "nf12_us": 6.0,
        "nf12_us_plain": 8.0, "timed_as": "graph", "copies": 4, "gb_per_s": 1.234567,
        "violations": 0, "checked_rows": 1,
    }  # fmt: skip
    return bench.Row(**(values | fields))


def test_a_row_of_a_gpu() -> None:
    fields = row().to_dict()
    assert fields["nf12_us_plain"] == 8.0 and "fp32_us" not in fields
    assert fields["dense_us"] == 12.346 and fields["gb_per_s"] == 1.23
    assert row(timed_as="calls").to_dict()["dense_us"] == 12.3


def test_summary_of_all_shapes() -> None:
    rows = [
        row(dense_us=8.0, nf12_us=4.0, nf12_us_plain=8.0),
        row(dense_us=8.0, nf12_us=16.0, nf12_us_plain=16.0, n=32),
        row(m=2, dense_us=3.0, nf12_us=2.0, nf12_us_plain=None),
    ]
    one, two = bench.summarise(rows)
    assert (one.m, one.worst, one.worst_shape) == (1, 0.5, (64, 32))
    assert one.geomean == pytest.approx(1.0) and one.geomean_plain == pytest.approx(0.5**0.5)
    assert (two.m, two.geomean, two.geomean_plain) == (2, pytest.approx(1.5), None)
    assert "m    1: geomean 1.000, plain 0.707, worst 0.500 at 64x32" in bench_gemm.format_summary(
        one
    )


def test_the_driver_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = torch.device("cuda", 0)
    assert machine.driver_version(CPU) is None and machine.gpu_facts(CPU) is None
    nvidia, amd = tmp_path / "nvidia", tmp_path / "amd"
    monkeypatch.setattr(machine, "NVIDIA_DRIVER", nvidia)
    monkeypatch.setattr(machine, "AMD_DRIVER", amd)
    monkeypatch.setattr(torch.version, "hip", None)
    nvidia.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release"
    )
    assert machine.driver_version(gpu) == "580.159.04"
    nvidia.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert str(machine.driver_version(gpu)).startswith("CUDA ")
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert machine.driver_version(gpu) == "the kernel's own, HIP 7.1"
    amd.write_text("6.16.6\n")
    assert machine.driver_version(gpu) == "6.16.6"
