"""Which code runs an operation: the names, the choice, and what this machine can use.

- cpu: kernels of libnf12.so for CPU tensors
- hip: kernels of libnf12.so for AMD GPUs
- cuda: kernels of libnf12.so for NVIDIA GPUs
- torch: nf12.packing, plain torch operations on any device
- auto: the kernels for the tensor's device, else torch
"""

from __future__ import annotations

import enum
import functools
import importlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

VARIABLE = "NF12_BACKEND"


class BackendUnavailable(RuntimeError):
    """A backend was asked for by name that this build or this machine does not have."""


class Backend(str, enum.Enum):
    """Names of the backends. `Backend(name)` takes any case and refuses an unknown one."""

    AUTO = "auto"
    HIP = "hip"
    CUDA = "cuda"
    CPU = "cpu"
    TORCH = "torch"

    __str__ = str.__str__

    @classmethod
    def _missing_(cls, value: object) -> Backend:
        for member in cls:
            if isinstance(value, str) and value.lower() == member.value:
                return member
        names = ", ".join(member.value for member in cls)
        raise ValueError(f"nf12: unknown backend {value!r}, must be one of {names}")


GPU_BACKENDS = (Backend.HIP, Backend.CUDA)


def resolve_backend(name: Backend | str = "auto", device: torch.device | str = "cpu") -> Backend:
    """The backend that runs tensors of `device`; never AUTO.

    For "auto" the variable NF12_BACKEND (read once) decides, else the device: a GPU that this build
    has no kernels for gets TORCH, and `nf12 info` says why. ValueError for an unknown name,
    BackendUnavailable with the reason for one that cannot run here.
    """
    device = device if isinstance(device, torch.device) else torch.device(device)
    return _resolve(name, device.type, device.index)


def _resolve(name: Backend | str, device_type: str, index: int | None) -> Backend:
    if device_type == "cuda":
        index = gpu_index(index)
    return _resolve_once(name, device_type, index)


# Traced code takes the answer as a constant: neither the environment nor files belong in a graph.
# This is what torch.compiler.assume_constant_result sets; calling it would import torch._dynamo,
# which doubles the time of `import nf12`.
_resolve._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _resolve_once(name: Backend | str, device_type: str, index: int | None) -> Backend:
    backend = _decide(name, device_type, index)
    if backend in GPU_BACKENDS and index is not None:
        _load_table(index)
    return backend


@functools.cache
def _load_table(index: int) -> None:
    """Gives the library what `nf12 tune` measured on this GPU, before it first chooses a kernel."""
    importlib.import_module("nf12.tuned").load(index)


def _decide(name: Backend | str, device_type: str, index: int | None) -> Backend:
    backend = Backend(name)
    source = f"backend {backend.value!r}"
    if backend is Backend.AUTO:
        backend = default_backend()
        source = f"{VARIABLE}={backend.value}"
    if backend is Backend.AUTO:
        own = gpu_backend() if device_type == "cuda" else Backend.CPU
        usable = device_type in ("cpu", "cuda") and unavailable_reason(own, index) is None
        return own if usable else Backend.TORCH
    on_gpu = backend in GPU_BACKENDS
    reason = unavailable_reason(backend, index if on_gpu else None)
    if reason is None and backend is not Backend.TORCH:
        wanted = "cuda" if on_gpu else "cpu"
        if device_type != wanted:
            reason = f"it cannot run tensors on {device_type}"
    if reason is not None:
        raise BackendUnavailable(f"nf12: {source} is not available: {reason}")
    return backend


@functools.cache
def default_backend() -> Backend:
    """What NF12_BACKEND says, AUTO without it."""
    name = os.environ.get(VARIABLE, "")
    try:
        return Backend(name) if name else Backend.AUTO
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None


def gpu_backend() -> Backend:
    """The backend that the GPUs of this torch would use."""
    return Backend.HIP if torch.version.hip is not None else Backend.CUDA


def gpu_arch(index: int) -> str:
    """Exact name of a GPU's architecture: "gfx1201", "sm_90"."""
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip is not None:
        name: str = properties.gcnArchName  # "gfx90a:sramecc+:xnack-"
        return name.partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def gpu_index(index: int | None) -> int | None:
    """`index`, of torch.device("cuda") the current GPU's; None where torch sees no GPU."""
    if not torch.cuda.is_available():
        return None
    return torch.cuda.current_device() if index is None else index


def unavailable_reason(backend: Backend | str, index: int | None = None) -> str | None:
    """Why a backend cannot be used here, None if it can.

    A GPU backend is asked about GPU `index`; without one it can be used if some GPU can.
    """
    backend = Backend(backend)
    if backend in (Backend.AUTO, Backend.TORCH):
        return None
    missing = library_missing()
    if missing is not None or backend is Backend.CPU:
        return missing
    seen = torch.cuda.is_available() and gpu_backend() is backend
    if not seen:
        if not _held_targets(backend):
            return f"this build of libnf12.so holds no {backend} kernels"
        return f"torch {torch.__version__} sees no {backend} device"
    indices = range(torch.cuda.device_count()) if index is None else [index]
    problems = [_gpu_problem(backend, i) for i in indices]
    return None if None in problems else problems[0]


def _held_targets(backend: Backend) -> list[str]:
    """The GPUs of a backend that libnf12.so holds machine code for."""
    prefix = "gfx" if backend is Backend.HIP else "sm"
    return [target for target in build_info()["gpu_targets"] if target.startswith(prefix)]


def _gpu_problem(backend: Backend, index: int) -> str | None:
    """Why GPU `index` cannot run the kernels of `backend`, None if it can."""
    arch, held = gpu_arch(index), _held_targets(backend)
    # AMD's by the exact name: gfx1250 is no gfx12 of these, and a near miss would run wrong code.
    # NVIDIA's code is one file that also serves later GPUs, as far as the driver takes it.
    target = arch if backend is Backend.HIP else "sm"
    if backend is Backend.HIP and arch not in listed_targets():
        return f"{arch} has no kernels, those with some are {', '.join(listed_targets())}"
    if target not in held:
        return (
            f"this build of libnf12.so holds no kernels for {arch}, build it with "
            f"NF12_GPU_TARGETS={target}"
        )
    problem: str | None = introspection().gpu_problem(index)
    if problem is not None and backend is Backend.CUDA:
        version = getattr(torch._C, "_cuda_getDriverVersion", int)()  # 13000 for 13.0
        problem += f" (its driver is for CUDA {version // 1000}.{version % 1000 // 10})"
    return problem


@functools.cache
def listed_targets() -> tuple[str, ...]:
    """The AMD GPUs that there are kernels for, whether or not this build holds them."""
    text = (Path(__file__).parent / "lib" / "targets.json").read_text()
    return tuple(json.loads(text)["gfx12"])


def has_kernels(device: torch.device) -> bool:
    """Whether the operators of libnf12.so run tensors of `device`."""
    if device.type == "cuda":
        return unavailable_reason(gpu_backend(), gpu_index(device.index)) is None
    return device.type == "cpu" and library_missing() is None


@functools.cache
def library_missing() -> str | None:
    """Why libnf12.so with the kernels is not in use, None if it is. Loads it at the first call."""
    try:
        importlib.import_module("nf12.ops")
        introspection()
    except (ImportError, OSError, RuntimeError) as error:
        return f"libnf12.so could not be loaded ({error})"
    return None


def introspection() -> Any:
    """The extension module nf12._C, which tells what libnf12.so holds and chooses."""
    return importlib.import_module("nf12._C")


def build_info() -> dict[str, Any]:
    """version, compiler, torch_target, format_version, gpu_targets, source_hash of libnf12.so."""
    info: dict[str, Any] = introspection().build_info()
    return info


def info() -> dict[str, Any]:
    """What is installed, what this machine can use of it, and why not the rest. JSON types only.

    Keys: versions (nf12, torch, python), library (loaded, reason, and the fields of build_info),
    cpu (levels, supported, highest), backends (name -> {usable, reason}), devices
    (name -> {backend, arch, llc_bytes, tuned}), environment (the NF12_* variables that are set).
    """
    from nf12 import __version__

    missing = library_missing()
    library: dict[str, Any] = {"loaded": missing is None, "reason": missing}
    cpu: dict[str, Any] = {"levels": [], "supported": [], "highest": None, "reason": missing}
    if missing is None:
        library |= build_info()
        cpu = _cpu_levels()
    return {
        "versions": {
            "nf12": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "library": library,
        "cpu": cpu,
        "backends": {
            b.value: {"usable": unavailable_reason(b) is None, "reason": unavailable_reason(b)}
            for b in Backend
        },
        "devices": {"cpu": _device_info("cpu")}
        | {f"cuda:{i}": _device_info(f"cuda:{i}") for i in range(torch.cuda.device_count())},
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith("NF12_")},
    }


def _cpu_levels() -> dict[str, Any]:
    c = introspection()
    try:
        highest, reason = c.highest_cpu_level(), None
    except RuntimeError as error:  # a bad NF12_CPU_LEVEL
        highest, reason = None, str(error)
    return {
        "levels": c.cpu_levels(),
        "supported": c.supported_cpu_levels(),
        "highest": highest,
        "reason": reason,
    }


def _device_info(device: str) -> dict[str, Any]:
    from nf12.llc import llc_bytes

    try:
        chosen, reason = resolve_backend(Backend.AUTO, device).value, None
    except (BackendUnavailable, ValueError) as error:  # a bad NF12_BACKEND
        chosen, reason = None, str(error)
    if device == "cpu":
        name = platform.processor() or platform.machine()
        return {"backend": chosen, "reason": reason, "name": name}
    index = torch.device(device).index
    if chosen == Backend.TORCH:
        reason = unavailable_reason(gpu_backend(), index)
    return {
        "backend": chosen,
        "reason": reason,
        "name": torch.cuda.get_device_properties(index).name,
        "arch": gpu_arch(index),
        "llc_bytes": llc_bytes(device),
        "tuned": importlib.import_module("nf12.tuned").state(index),
    }
