"""scripts/validate_nf12_ad.py: its table, its JSON, its exit codes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from fake_graphs import FakeGraphs, Graph
from gpu_standin import StandIn
from reference import activations, gemm_bound, gemm_reference, realistic_weights, ulp_bf16

import nf12
from nf12 import functional, timing, validation
from nf12.backend import introspection

SCRIPT = Path(__file__).parents[1] / "scripts" / "validate_nf12_ad.py"
SMALL = ["--shapes", "256x128", "192x100", "--m", "1", "15", "16"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    monkeypatch.setenv("NF12_LLC_BYTES", str(1 << 20))
    spec = importlib.util.spec_from_file_location("validate_nf12_ad", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_as_a_program() -> None:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "--backend", "CPU", *SMALL, "--json"],
        env=os.environ | {"NF12_LLC_BYTES": str(1 << 20)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["backend"] == "cpu" and data["passed"] and data["violations"] == 0


@pytest.mark.parametrize("backend", ["auto", "cpu", "torch"])
def test_passes_and_prints(
    script: ModuleType, backend: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    assert script.main(["--backend", backend, *SMALL, "--seed", "3", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "all 6 passed" in out and "max |ref|" in out and "must be below 2.0" in out
    data = json.loads(file.read_text())
    shapes = [(row["k"], row["n"], row["m"]) for row in data["rows"]]
    assert shapes == [(k, n, m) for k, n in ((256, 128), (192, 100)) for m in (1, 15, 16)]
    assert data["seed"] == 3
    for row in data["rows"]:
        assert row["timed_as"] == "calls"
        assert row["passed"] and row["violations"] == row["violations_any_scale"] == 0
        assert 1e-3 < row["rms_rel"] < 2.4e-3, "the rounding of the result to BF16"
        assert 0 < row["max_abs_ref"] < 2
        assert row["ratio"] == row["dense_us"] / row["nf12_us"]
        assert row["ratio_warm"] == row["dense_warm_us"] / row["nf12_warm_us"]
        assert row["gb_per_s"] == row["packed_bytes"] / row["nf12_us"] / 1e3


def test_lists_may_have_commas(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--shapes", "256x128,128X64", "--m", "1,2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 4


def flip_payload_bit(packed: nf12.PackedWeight) -> None:
    packed.payload[0, 0, 0] ^= 0x80  # the sign of one weight


def swap_window(packed: nf12.PackedWeight) -> None:
    object.__setattr__(packed, "base", packed.base + 1)


def drop_escapes(packed: nf12.PackedWeight) -> None:
    packed.index.zero_()


@pytest.mark.parametrize("corrupt", [flip_payload_bit, swap_window, drop_escapes])
@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_a_corrupted_weight_fails(
    script: ModuleType,
    backend: str,
    corrupt: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = validation.pack

    def corrupted(weight: torch.Tensor, **options: Any) -> nf12.PackedWeight:
        if corrupt is drop_escapes:
            weight[0, 0] = 1.0  # large enough to be seen, and outside the window
        packed = real(weight, base=112 if corrupt is swap_window else None, **options)
        assert isinstance(packed, nf12.PackedWeight)
        corrupt(packed)
        return packed

    monkeypatch.setattr(validation, "pack", corrupted)
    assert script.main(["--backend", backend, *SMALL]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_data_that_leave_the_range_of_the_bound_fail(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(validation, "MAX_REFERENCE", 0.01)
    assert script.main(SMALL) == 1
    assert "must be below 0.01" in capsys.readouterr().out


@pytest.mark.parametrize("device", ["gfx1200", "gfx1201"])
def test_hip_in_the_host_model(
    script: ModuleType, device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As far as a machine without a GPU gets: CPU tensors are memory of a pretended one."""
    monkeypatch.setattr(validation, "device_of", lambda backend: torch.device("cpu"))
    for module in (nf12, functional, validation):
        monkeypatch.setattr(module, "resolve_backend", lambda name, device: nf12.Backend.HIP)
    monkeypatch.setattr(functional, "gpu_index", lambda index: 0)
    driver, file = StandIn((device, 32)), tmp_path / "out.json"
    with driver.on(0):
        status = script.main(["--backend", "hip", *SMALL, "--json", str(file)])
    introspection().pretend_gpu("", -1)
    data = json.loads(file.read_text())
    assert status == 0 and data["backend"] == "hip" and data["passed"], data
    kernels = [(row["m"], row["kernel"]) for row in data["rows"]]
    assert kernels == [(1, "fused"), (15, "fused"), (16, "matrix")] * 2
    launched = set(driver.kernels())
    assert {"pack_survey_a16", "gemm_fused_m1", "gemm_fused_m15", "gemm_matrix_t16"} <= launched


def test_a_wrong_result_of_a_timed_call_is_seen(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values that count are those of the timed calls, not of one made for the purpose."""
    real, calls = validation.gemm, []

    def stale(*arguments: Any, **options: Any) -> torch.Tensor:
        calls.append(1)
        y = real(*arguments, **options)
        return y if len(calls) < 5 else torch.zeros_like(y)

    monkeypatch.setattr(validation, "gemm", stale)
    assert script.main(["--shapes", "256x128", "--m", "1"]) == 1


def test_the_first_gpu_with_kernels_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    reasons = {("hip", 0): "gfx1036 has no kernels", ("hip", 1): None}
    monkeypatch.setattr(
        validation, "unavailable_reason", lambda backend, index: reasons.get((backend, index), "no")
    )
    for backend, device in (
        ("hip", "cuda:1"), ("auto", "cuda:1"), ("torch", "cuda:0"), ("cpu", "cpu"),
        ("cuda", "cuda"),
    ):  # fmt: skip
        assert validation.device_of(backend) == torch.device(device), backend
    reasons["hip", 1] = "no"
    assert validation.device_of("auto") == torch.device("cuda:0"), "for backend torch"


# ---- how time is taken ---------------------------------------------------------------------------


def test_graphs_between_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    fake = FakeGraphs(monkeypatch)

    def call(us: int) -> timing.Call:
        def run(copy: int) -> torch.Tensor:
            fake.log.append(f"c{us}@{copy}")
            return torch.full((1,), float(us))

        return run

    dense, ours = timing.alternate((call(20), call(10)), torch.device("cuda"), capturable=True)
    assert round(dense.cold_us, 6) == round(dense.warm_us, 6) == 20
    assert round(ours.cold_us, 6) == round(ours.warm_us, 6) == 10
    assert ours.result.item() == 10 and ours.is_graph and dense.is_graph
    copies = range(timing.GPU_COPIES)
    cold = ["flush", *(f"c20@{i}" for i in copies), "wait"]
    cold += ["flush", *(f"c10@{i}" for i in copies), "wait"]
    warm = ["c20@0" for _ in copies] + ["wait"] + ["c10@0" for _ in copies] + ["wait"]
    turns = 1 + timing.MIN_TURNS
    assert fake.log == ["c20@0", "c10@0", *cold * turns, *warm * turns]


def test_what_cannot_be_captured_is_timed_call_by_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    fake = FakeGraphs(monkeypatch)

    def refuse(graph: Graph) -> NoReturn:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuse)

    def call(copy: int) -> torch.Tensor:
        fake.clock_ms += 0.03
        return torch.ones(1)

    with pytest.warns(UserWarning, match="since capture failed: operation not permitted"):
        (times,) = timing.alternate([call], torch.device("cuda"), capturable=True)
    assert not times.is_graph and round(times.cold_us, 6) == round(times.warm_us, 6) == 30
    (again,) = timing.alternate([call], torch.device("cuda"), capturable=False)
    assert not again.is_graph


def test_flush_is_twice_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NF12_LLC_BYTES", str(64 << 20))
    assert timing.flush_bytes(torch.device("cuda")) == 128 << 20
    assert timing.flush_bytes(torch.device("cpu")) == 128 << 20
    monkeypatch.delenv("NF12_LLC_BYTES")
    properties = SimpleNamespace(L2_cache_size=50 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert timing.flush_bytes(torch.device("cuda")) == 100 << 20


@pytest.mark.parametrize("backend", ["hip", "cuda"])
def test_a_backend_that_is_not_there_is_2_with_the_reason(
    script: ModuleType, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = nf12.backend.unavailable_reason(backend)
    if reason is None:
        pytest.skip(f"backend {backend} is there")
    assert script.main(["--backend", backend, *SMALL]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and reason in captured.err and backend in captured.err


def test_an_unknown_backend_is_2_with_the_list(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--backend", "rocm"]) == 2
    assert "auto, hip, cuda, cpu, torch" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--shapes", "4096"], ["--shapes", "0x64"], ["--m", "0"], ["--m", "-1"], ["--m", "one"]],
    ids=" ".join,
)
def test_wrong_command_lines_are_2(script: ModuleType, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        script.main(arguments)
    assert caught.value.code == 2


def test_a_shape_that_stays_dense_is_2(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--shapes", "64x2"]) == 2
    assert "2 x 64 would take" in capsys.readouterr().err


def test_defaults() -> None:
    assert len(validation.SHAPES) == 8 and len(validation.CPU_SHAPES) < 8
    assert validation.TOKENS == (1, 8, 15, 16, 64)


def test_the_bound_is_the_one_of_the_tests() -> None:
    """Derived twice, compared here."""
    x, w = activations(3, 256), realistic_weights(64, 256)
    reference, terms = validation.gemm_reference(x, w)
    assert torch.equal(reference, gemm_reference(x, w))
    bound = validation.gemm_bound(reference, terms, 256)
    torch.testing.assert_close(bound, gemm_bound(x, w), rtol=1e-12, atol=0)
    values = torch.tensor([1.0, 1.9921875, 2.0, 2.0**-126, 2.0**-133, 0.0], dtype=torch.float64)
    expected = torch.tensor([2.0**-7, 2.0**-7, 2.0**-6] + [2.0**-133] * 3, dtype=torch.float64)
    assert torch.equal(ulp_bf16(values), expected)
