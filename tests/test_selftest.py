"""`nf12 selftest`: what it checks, what it notices, and the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_standin import StandIn
from torch import Tensor
from typer.testing import CliRunner

import nf12
from nf12 import selftest, timing, validation
from nf12.backend import introspection
from nf12.cli import app
from nf12.selftest import checks, targets
from nf12.selftest.subnormals import CASES, probe

CHECKS = ("pack", "unpack", "gather", "gemm", "subnormals")
LEVEL = nf12.info()["cpu"]["highest"]
CPU = selftest.Target(nf12.Backend.CPU, "cpu", LEVEL)
HIP = nf12.Backend.HIP


def nf12_selftest(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["selftest", *map(str, arguments)])


def test_passes_at_every_level() -> None:
    done = nf12_selftest()
    assert done.exit_code == 0, done.stdout
    lines = done.stdout.splitlines()
    names = [f"cpu {level}" for level in nf12.info()["cpu"]["supported"]]
    assert len(lines) == len(names) * len(CHECKS) + 1
    expected = [(name, check) for name in names for check in CHECKS]
    for line, (name, check) in zip(lines, expected, strict=False):
        assert line.startswith(f"ok     {name}") and f" {check} " in line
    assert lines[-1] == f"{len(expected)} checks passed"


@pytest.mark.parametrize("op", ["pack", "unpack", "gather", "gemm"])
def test_sees_a_wrong_kernel(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(torch.ops.nf12, op)

    def wrong(*arguments: Any) -> Any:
        result = real(*arguments)
        flat = (result[0] if isinstance(result, tuple) else result).view(-1)
        if flat.dtype == torch.bfloat16:
            flat.view(torch.int16)[-1] ^= 0x40
        else:
            flat[-1] ^= 1
        return result

    monkeypatch.setattr(torch.ops.nf12, op, wrong)
    result = {r.check: r for r in checks.check_target(CPU)}[op]
    assert not result.passed and result.detail.startswith("Mismatch: ")


def test_reports_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    monkeypatch.setattr(targets, "PROGRAM", crash)
    done = nf12_selftest()
    assert done.exit_code == 1
    assert "SIGILL" in done.stdout and "FAILED" in done.stdout


def test_without_the_library_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    info = nf12.info() | {"library": {"loaded": False, "reason": "it is gone"}}
    monkeypatch.setattr(nf12, "info", lambda: info)
    done = nf12_selftest()
    assert done.exit_code == 1 and "it is gone" in done.stdout


# ---- targets -------------------------------------------------------------------------------------


def test_targets_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = ["gfx1036 has no kernels in this build", None]
    info = nf12.info()
    monkeypatch.setattr(nf12, "info", lambda: info)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(reasons))
    monkeypatch.setattr(targets, "gpu_backend", lambda: HIP)
    monkeypatch.setattr(targets, "unavailable_reason", lambda backend, index: reasons[index])
    on_gpus = [t for t in selftest.find_targets() if t.device != "cpu"]
    assert [t.name for t in on_gpus] == [
        "cuda:0 torch auto",
        "cuda:1 hip auto",
        "cuda:1 hip fused",
        "cuda:1 hip matrix",
        "cuda:1 hip buffered",
        "cuda:1 torch auto",
    ]
    for target in on_gpus:
        own = ("gemm", "subnormals")
        assert target.checks == (CHECKS if target.kernel == "auto" else own)


def test_backend_torch_passes() -> None:
    for result in checks.check_target(selftest.Target(nf12.Backend.TORCH, "cpu")):
        assert result.passed, result


def test_a_kernel_that_the_build_lacks_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def gemm(*arguments: object) -> Tensor:
        raise RuntimeError("nf12::gemm: kernel fused is not built for this GPU: sm_90, m 1")

    monkeypatch.setattr(torch.ops.nf12, "gemm", gemm)
    by_check = {r.check: r for r in checks.check_target(CPU)}
    assert by_check["gemm"].passed and by_check["gemm"].detail == checks.LEFT_OUT
    source = Path(__file__).parents[1] / "csrc" / "gemm" / "select.hpp"
    for words in (checks.LEFT_OUT, *checks.NOT_TAKEN):
        assert f'"{words}' in source.read_text(), "these are the operator's words"


def test_a_kernel_for_few_tokens_is_asked_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def gemm(target: object, x: Tensor, operands: Any, bias: Tensor | None) -> Tensor:
        asked.append(len(x))
        if len(x) > most:
            raise RuntimeError(f"nf12::gemm: kernel fused takes at most {most} tokens: gfx1201")
        y = x.double() @ nf12.packing.unpack_spec(*operands).double().T
        return (y if bias is None else y + bias).bfloat16()

    monkeypatch.setattr(checks, "_gemm", gemm)
    target, most = selftest.Target(HIP, "cpu", "fused"), 16
    monkeypatch.setattr(checks, "_operands", lambda target, weight: pack_for_cpu(weight))
    assert "outputs, worst error" in checks.CHECKS["gemm"](target, {})
    assert set(range(1, 18)) < set(asked)
    most = 0
    with pytest.raises(selftest.Mismatch, match="took none of the problems"):
        checks.CHECKS["gemm"](target, {})


def pack_for_cpu(weight: Tensor) -> tuple[Any, ...]:
    payload, index, escapes, meta = torch.ops.nf12.pack(weight)
    return payload, index, escapes, *meta.tolist()[1:]


@pytest.mark.parametrize("backend", ["hip", "torch"])
def test_only_backend_torch_may_round_the_product(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rounded_twice(target: object, x: Tensor, operands: Any, bias: Tensor | None) -> Tensor:
        y = exact(x, nf12.packing.unpack_spec(*operands))
        return y if bias is None else y + bias

    monkeypatch.setattr(checks, "_gemm", rounded_twice)
    monkeypatch.setattr(checks, "_operands", lambda target, weight: pack_for_cpu(weight))
    target = selftest.Target(nf12.Backend(backend), "cuda:0")
    if backend == "torch":
        checks.CHECKS["gemm"](target, {})
    else:
        with pytest.raises(selftest.Mismatch, match=r"m=1, bias: .* times the bound"):
            checks.CHECKS["gemm"](target, {})


@pytest.fixture
def pretended_gpu() -> Iterator[StandIn]:
    """CPU tensors are memory of an R9700 whose driver runs the host model."""
    driver = StandIn(("gfx1201", 32))
    with driver.on(0):
        yield driver
    introspection().pretend_gpu("", -1)


@pytest.mark.parametrize("kernel", ["auto", "fused", "matrix", "buffered"])
def test_gpu_kernels_pass_in_the_host_model(
    kernel: str, pretended_gpu: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_tokens", lambda target: (1, 16))
    target = selftest.Target(HIP, "cpu", kernel)
    results = checks.check_target(target)
    assert [r.check for r in results] == list(target.checks)
    for result in results:
        assert result.passed and result.detail != checks.LEFT_OUT, result
    # Buffered multiplies by torch's own matmul, which flushes where it has vdpbf16ps.
    kept = dict.fromkeys(CASES, "kept")
    assert results[-1].facts == (probe(torch_matmul) if kernel == "buffered" else kept)
    launched = {name.partition("_")[0] for name in pretended_gpu.kernels()}
    assert "gemm" in launched or kernel == "buffered"


# ---- subnormals ----------------------------------------------------------------------------------


def exact(x: Tensor, weight: Tensor) -> Tensor:
    return (x.double() @ weight.double().T).bfloat16()


def torch_matmul(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.T


def without_subnormals(values: Tensor) -> Tensor:
    return torch.where(values.abs() < 2.0**-126, 0.0, values)


@pytest.mark.parametrize(
    ("gemm", "flushed"),
    [
        (exact, set()),
        (lambda x, w: exact(without_subnormals(x.double()), w), {"activation"}),
        (lambda x, w: exact(x, without_subnormals(w.double())), {"weight"}),
        (lambda x, w: without_subnormals(exact(x, w)), {"product", "sum"}),
        (
            lambda x, w: without_subnormals(x.double()[:, None] * w.double()).sum(2).bfloat16(),
            {"product", "addends"},
        ),
    ],
    ids=["nothing", "activations", "weights", "outputs", "products"],
)
def test_probe_tells_what_is_flushed(
    gemm: Callable[[Tensor, Tensor], Tensor], flushed: set[str]
) -> None:
    facts = probe(gemm)
    assert list(facts) == list(CASES)
    assert {case for case, fact in facts.items() if fact == "flushed"} == flushed
    assert set(facts.values()) <= {"kept", "flushed"}


def test_probe_tells_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe(lambda x, w: exact(x, w) * 2)["weight"] == f"{2.0**-109} instead of {2.0**-110}"
    real = torch.ops.nf12.gemm
    monkeypatch.setattr(torch.ops.nf12, "gemm", lambda *arguments: real(*arguments) + 1)
    result = {r.check: r for r in checks.check_target(CPU)}["subnormals"]
    assert not result.passed and "neither kept nor flushed" in result.detail


# ---- the report ----------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    monkeypatch.setattr(validation, "CPU_SHAPES", ((256, 128),))
    monkeypatch.setenv("NF12_LLC_BYTES", str(1 << 20))


@pytest.mark.usefixtures("quick")
def test_report(tmp_path: Path) -> None:
    done = nf12_selftest("--report", tmp_path / "out.json")
    assert done.exit_code == 0, done.stdout
    assert "ok     cpu 256x128 m=15 " in done.stdout
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["passed"] is True
    assert report["info"] == nf12.info()
    names = [f"cpu {level}" for level in nf12.info()["cpu"]["supported"]]
    assert [(r["target"], r["check"]) for r in report["results"]] == [
        (name, check) for name in names for check in CHECKS
    ]
    assert list(report["subnormals"]) == names
    assert all(list(facts) == list(CASES) for facts in report["subnormals"].values())
    validate, bench = report["validate"]["cpu"], report["bench"]["cpu"]
    assert validate["device"] == "cpu" and validate["flush_bytes"] == 2 << 20
    assert [row["m"] for row in validate["rows"]] == list(validation.TOKENS)
    assert [row["m"] for row in bench["rows"]] == [1, 8, 64]
    for row in bench["rows"]:
        assert row["violations"] == 0 and row["escape_rate"] == 3.3e-4 and row["gb_per_s"] > 0


@pytest.mark.usefixtures("quick")
def test_a_violation_fails_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MAX_REFERENCE", 0.01)
    monkeypatch.setattr(targets, "PROGRAM", "print('[]')")
    done = nf12_selftest("--report", tmp_path / "out.json")
    assert done.exit_code == 1 and "FAILED cpu 256x128" in done.stdout
    assert json.loads((tmp_path / "out.json").read_text())["passed"] is False
