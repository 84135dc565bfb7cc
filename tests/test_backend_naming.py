"""Backends: exactly five names, any case, and what happens to one that is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import nf12
from nf12 import Backend, BackendUnavailable, backend, functional, resolve_backend

NAMES = ["auto", "hip", "cuda", "cpu", "torch"]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Choices are cached for the process: a test that changes their causes starts anew."""
    caches = (backend._resolve_once, backend.default_backend, functional.direct_gemm)
    for cache in caches:
        cache.cache_clear()
    yield monkeypatch  # type: ignore[misc]
    for cache in caches:
        cache.cache_clear()


def test_the_names_are_exactly_these() -> None:
    assert [b.value for b in Backend] == NAMES
    assert [str(b) for b in Backend] == NAMES
    assert [f"{b}" for b in Backend] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_any_case_is_taken(name: str) -> None:
    for spelled in (name, name.upper(), name.title(), name[0] + name[1:].upper()):
        assert Backend(spelled) is Backend(name)
    assert Backend(Backend(name)) is Backend(name)
    assert Backend(name) == name


@pytest.mark.parametrize(
    "name", ["", "rocm", "gpu", "c++", "cpu ", "cuda:0", "native", "AUTO!", None, 0, 1.0], ids=repr
)
def test_unknown_names_are_refused_with_the_list(name: object) -> None:
    with pytest.raises(ValueError) as caught:
        Backend(name)
    assert repr(name) in str(caught.value)
    assert "auto, hip, cuda, cpu, torch" in str(caught.value)
    with pytest.raises(ValueError, match="auto, hip, cuda, cpu, torch"):
        resolve_backend(name)  # type: ignore[arg-type]


def test_auto_is_the_kernels_of_the_device_else_torch() -> None:
    assert resolve_backend() is Backend.CPU
    assert resolve_backend("auto", "cpu") is Backend.CPU
    assert resolve_backend("auto", torch.device("cpu")) is Backend.CPU
    for device in ("cuda", "cuda:1", "meta", "xpu"):
        if device.startswith("cuda") and backend.unavailable_reason(backend.gpu_backend()) is None:
            continue  # a build with kernels on a machine with such a GPU
        assert resolve_backend("auto", device) is Backend.TORCH


@pytest.mark.parametrize("name", ["torch", "TORCH"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0", "meta"])
def test_torch_runs_anywhere(name: str, device: str) -> None:
    assert resolve_backend(name, device) is Backend.TORCH


@pytest.mark.parametrize("name", ["hip", "cuda"])
def test_a_backend_without_kernels_is_refused_with_the_reason(
    name: str, fresh: pytest.MonkeyPatch
) -> None:
    fresh.setattr(backend, "build_info", lambda: {"gpu_targets": []})
    with pytest.raises(BackendUnavailable, match=f"holds no {name} kernels"):
        resolve_backend(name, "cuda")
    with pytest.raises(BackendUnavailable, match=f"backend '{name}' is not available"):
        nf12.gemm(torch.ones(1, 64).bfloat16(), packed_ones(), backend=name)


@pytest.mark.parametrize(("name", "target"), [("hip", "gfx1201"), ("cuda", "sm_90a")])
def test_a_backend_without_a_device_is_refused_with_the_reason(
    name: str, target: str, fresh: pytest.MonkeyPatch
) -> None:
    fresh.setattr(backend, "build_info", lambda: {"gpu_targets": [target]})
    fresh.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendUnavailable, match=f"sees no {name} device"):
        resolve_backend(name, "cuda")


ROCM, CUDA = "7.1", None
RDNA4 = ["gfx1200", "gfx1201"]
NVIDIA = ["sm"]


class FakeMachine:
    """GPUs of given architectures, and a libnf12.so that holds code for `targets`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.real = backend.introspection()
        self.current = 0
        self.problems: dict[int, str] = {}  # what the driver says of a GPU that it cannot use
        self.selected: list[tuple[int, ...]] = []

    def __call__(self, hip: str | None, archs: list[str], targets: list[str]) -> None:
        backend._resolve_once.cache_clear()
        cuda = torch.cuda
        self.patch.setattr(torch.version, "hip", hip)
        self.patch.setattr(cuda, "is_available", lambda: True)
        self.patch.setattr(cuda, "device_count", lambda: len(archs))
        self.patch.setattr(cuda, "current_device", lambda: self.current)
        self.patch.setattr(
            cuda, "get_device_properties", lambda device: self.properties(archs[device])
        )
        self.patch.setattr(backend, "build_info", lambda: {"gpu_targets": targets})
        self.patch.setattr(backend, "introspection", lambda: self)
        self.patch.setattr(functional, "introspection", lambda: self)

    @staticmethod
    def properties(arch: str) -> SimpleNamespace:
        digits = arch.removeprefix("sm_") if arch.startswith("sm_") else "00"
        return SimpleNamespace(
            name=f"a {arch}", gcnArchName=arch, major=int(digits[:-1]), minor=int(digits[-1])
        )

    # ---- as nf12._C

    def gpu_problem(self, index: int) -> str | None:
        return self.problems.get(index)

    def gpu_kernels(self) -> list[str]:
        return ["fused", "stream", "cluster", "wide", "matrix", "buffered"]

    def select_gpu(self, *arguments: int) -> dict[str, Any]:
        self.selected.append(arguments)
        return {"kernel": "fused", "tokens": arguments[0], "splits": 2}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.fixture
def machine(fresh: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(fresh)


@pytest.mark.parametrize(
    ("hip", "arch", "targets", "expected"),
    [
        (ROCM, "gfx1201", RDNA4, "hip"),
        (ROCM, "gfx1200", RDNA4, "hip"),
        (ROCM, "gfx1201:sramecc-:xnack-", RDNA4, "hip"),
        (ROCM, "gfx1100", RDNA4, "torch"),
        (ROCM, "gfx90a:sramecc+:xnack-", RDNA4, "torch"),
        (ROCM, "gfx1250", RDNA4, "torch"),
        (ROCM, "gfx120", RDNA4, "torch"),
        (ROCM, "gfx12011", RDNA4, "torch"),
        (ROCM, "gfx1200", ["gfx1201"], "torch"),
        (ROCM, "gfx1201", NVIDIA, "torch"),
        (CUDA, "sm_90", NVIDIA, "cuda"),
        (CUDA, "sm_120", NVIDIA, "cuda"),
        (CUDA, "sm_90", RDNA4, "torch"),
        (CUDA, "sm_90", [], "torch"),
    ],
)
def test_auto_takes_the_kernels_where_build_and_device_agree(
    hip: str | None, arch: str, targets: list[str], expected: str, machine: FakeMachine
) -> None:
    machine(hip, [arch], targets)
    assert resolve_backend("auto", "cuda") == expected
    assert resolve_backend("auto", "cuda:0") == expected
    assert backend.has_kernels(torch.device("cuda")) == (expected != "torch")


def test_each_gpu_is_judged_by_its_own_name(machine: FakeMachine) -> None:
    machine(ROCM, ["gfx1036", "gfx1201"], RDNA4)
    assert resolve_backend("auto", "cuda:0") is Backend.TORCH
    assert resolve_backend("auto", "cuda:1") is Backend.HIP
    assert resolve_backend("auto", "cuda") is Backend.TORCH
    machine.current = 1
    assert resolve_backend("auto", "cuda") is Backend.HIP, "the current GPU"
    assert resolve_backend("hip", "cuda:1") is Backend.HIP
    with pytest.raises(BackendUnavailable, match=r"gfx1036 has no kernels, .* gfx1200, gfx1201"):
        resolve_backend("hip", "cuda:0")
    assert backend.unavailable_reason("hip") is None, "one of them can"


def test_a_gpu_that_another_build_would_serve(machine: FakeMachine) -> None:
    for hip, arch, targets, name in (
        (ROCM, "gfx1201", [], "gfx1201"),
        (ROCM, "gfx1200", ["gfx1201", "sm"], "gfx1200"),
        (CUDA, "sm_90", ["gfx1201"], "sm"),
    ):
        machine(hip, [arch], targets)
        own = backend.gpu_backend()
        with pytest.raises(BackendUnavailable) as caught:
            resolve_backend(own, "cuda")
        assert f"no kernels for {arch}, build it with NF12_GPU_TARGETS={name}" in str(caught.value)
        assert backend.unavailable_reason(own) in str(caught.value)


def test_the_listed_gpus_are_those_of_the_source() -> None:
    source = Path(__file__).parents[1] / "csrc" / "arch" / "targets.json"
    assert list(backend.listed_targets()) == json.loads(source.read_text())["gfx12"]


def test_info_tells_why_a_gpu_gets_torch(machine: FakeMachine) -> None:
    machine(ROCM, ["gfx1201", "gfx1100"], RDNA4)
    devices = nf12.info()["devices"]
    assert devices["cuda:0"]["backend"] == "hip" and devices["cuda:0"]["reason"] is None
    assert devices["cuda:1"]["backend"] == "torch" and devices["cuda:1"]["arch"] == "gfx1100"
    assert "gfx1100 has no kernels" in devices["cuda:1"]["reason"]
    assert devices["cuda:0"]["llc_bytes"] == 64 << 20


def test_a_driver_that_refuses_the_code_is_quoted(machine: FakeMachine) -> None:
    machine.problems[0] = "cuModuleLoadData: the provided PTX was compiled with an unsupported ..."
    machine(CUDA, ["sm_90"], NVIDIA)
    version = "_cuda_getDriverVersion"
    machine.patch.setattr(torch._C, version, lambda: 12040, raising=False)
    assert resolve_backend("auto", "cuda:0") is Backend.TORCH
    with pytest.raises(BackendUnavailable, match="not available: cuModuleLoadData: the provided"):
        resolve_backend("cuda", "cuda:0")
    reason = nf12.info()["devices"]["cuda:0"]["reason"]
    assert reason.endswith("unsupported ... (its driver is for CUDA 12.4)")


def test_select_asks_for_the_gpu_it_is_given(machine: FakeMachine) -> None:
    machine(ROCM, ["gfx1201", "gfx1201"], RDNA4)
    machine.current = 1
    assert nf12.select(15, 64, 128, "cuda:0") == nf12.Selection(Backend.HIP, "fused", 15, 2)
    assert nf12.select(16, 64, 128, "cuda") == nf12.Selection(Backend.HIP, "fused", 16, 2)
    assert nf12.select(1, 64, 128, "cpu").backend is Backend.CPU
    assert machine.selected == [(15, 64, 128, 0), (16, 64, 128, 1)]


def test_kernels_by_backend(machine: FakeMachine) -> None:
    machine(ROCM, ["gfx1201"], RDNA4)
    assert nf12.kernels("hip") == ("fused", "matrix", "buffered")
    assert nf12.kernels("cuda") == ("fused", "stream", "cluster", "wide", "matrix", "buffered")
    assert list(nf12.kernels("cpu")) == nf12.info()["cpu"]["levels"]
    assert nf12.kernels("torch") == ()


def test_a_kernel_of_another_backend_is_refused_with_the_list() -> None:
    levels = ", ".join(nf12.info()["cpu"]["levels"])
    for kernel in ("fused", "matrix", "buffered", "Portable", ""):
        with pytest.raises(ValueError) as caught:
            nf12.gemm(torch.ones(1, 64).bfloat16(), packed_ones(), kernel=kernel)
        assert f"cpu has no kernel {kernel!r}, must be one of auto, {levels}" in str(caught.value)


def test_a_backend_is_refused_for_tensors_of_another_device(machine: FakeMachine) -> None:
    with pytest.raises(BackendUnavailable, match="cannot run tensors on cuda"):
        resolve_backend("cpu", "cuda:0")
    machine(CUDA, ["sm_90"], NVIDIA)
    with pytest.raises(BackendUnavailable, match="cannot run tensors on cpu"):
        resolve_backend("cuda", "cpu")


def test_without_the_library_auto_is_torch_and_cpu_says_why(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(backend, "library_missing", lambda: "libnf12.so could not be loaded (gone)")
    assert resolve_backend("auto", "cpu") is Backend.TORCH
    assert backend.unavailable_reason("torch") is None
    for name in ("cpu", "hip", "cuda"):
        with pytest.raises(BackendUnavailable, match=r"could not be loaded \(gone\)"):
            resolve_backend(name, "cpu")
    library = nf12.info()["library"]
    assert library == {"loaded": False, "reason": "libnf12.so could not be loaded (gone)"}


def run_python(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_without_the_library_works() -> None:
    """What the machine cannot use is info()'s to tell, never an import error."""
    out = run_python(
        "import sys; sys.modules['nf12._library'] = None\n"
        "import json, torch, nf12\n"
        "w = torch.randn(64, 256).bfloat16(); p = nf12.pack(w); x = torch.ones(2, 256).bfloat16()\n"
        "assert torch.equal(nf12.unpack(p), w)\n"
        "y = nf12.Linear(p)(x); q = nf12.PackedWeight(p.payload, p.index, p.escapes, p.meta)\n"
        "print(json.dumps([str(nf12.resolve_backend()), nf12.info()['library']['loaded']]))"
    )
    assert json.loads(out) == ["torch", False]


def test_the_variable_decides_for_auto_only(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv("NF12_BACKEND", "Torch")
    assert resolve_backend("auto", "cpu") is Backend.TORCH
    assert resolve_backend("cpu", "cpu") is Backend.CPU


def test_a_bad_variable_is_refused_by_its_name(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv("NF12_BACKEND", "gpu")
    with pytest.raises(ValueError, match=r"NF12_BACKEND: .*'gpu'.*auto, hip, cuda, cpu, torch"):
        resolve_backend()
    assert resolve_backend("torch") is Backend.TORCH
    assert "'gpu'" in nf12.info()["devices"]["cpu"]["reason"], "and info still answers"


def test_a_variable_that_names_a_missing_backend_says_so(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(backend, "build_info", lambda: {"gpu_targets": []})
    fresh.setenv("NF12_BACKEND", "hip")
    with pytest.raises(BackendUnavailable, match="NF12_BACKEND=hip is not available"):
        resolve_backend()


def test_info_is_json_and_covers_every_backend() -> None:
    info = json.loads(json.dumps(nf12.info()))
    assert list(info["backends"]) == NAMES
    for entry in info["backends"].values():
        assert entry["usable"] == (entry["reason"] is None)
    assert info["versions"]["torch"] == torch.__version__
    assert info["cpu"]["highest"] in info["cpu"]["supported"]
    assert info["devices"]["cpu"]["backend"] == "cpu"


def packed_ones() -> nf12.PackedWeight:
    packed = nf12.pack(torch.ones(16, 64).bfloat16())
    assert isinstance(packed, nf12.PackedWeight)
    return packed


def test_checkpoint_is_there_without_an_import_of_its_own() -> None:
    program = "import sys, nf12; assert 'nf12.checkpoint' not in sys.modules; nf12.checkpoint.load"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'checkpoints'"):
        nf12.checkpoints  # noqa: B018
