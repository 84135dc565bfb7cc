"""What a measurement is of: the processor or GPU, its driver, how fast it reads memory."""

from __future__ import annotations

import datetime
import platform
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nf12.backend import Backend, gpu_arch
from nf12.timing import cache_bytes

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
AMD_DRIVER = Path("/sys/module/amdgpu/version")
_CEILING_BYTES = {"cpu": 512 << 20, "cuda": 4 << 30}


def device_name(device: torch.device) -> str:
    """ "NVIDIA H200", "AMD EPYC 7763 64-Core Processor"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpu_info = Path("/proc/cpuinfo")
    for line in cpu_info.read_text().splitlines() if cpu_info.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def driver_version(device: torch.device) -> str | None:
    """Of a GPU's kernel driver, or of what torch calls where that is not told; None for a CPU."""
    if device.type != "cuda":
        return None
    if torch.version.hip is not None:
        if AMD_DRIVER.exists():
            return AMD_DRIVER.read_text().strip()
        return f"the kernel's own, HIP {torch.version.hip}"
    if NVIDIA_DRIVER.exists():
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", NVIDIA_DRIVER.read_text())
        if found:
            return found[0]
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout
        return lines.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        version = getattr(torch._C, "_cuda_getDriverVersion", int)()  # 13000 for 13.0
        return f"CUDA {version // 1000}.{version % 1000 // 10}"


def gpu_facts(device: torch.device) -> dict[str, Any] | None:
    """arch, multiprocessors, memory_bytes and cache_bytes of a GPU; None for a CPU."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    index = device.index if device.index is not None else torch.cuda.current_device()
    return {
        "arch": gpu_arch(index),
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "cache_bytes": cache_bytes(device),
    }


def read_ceiling_gb_per_s(device: torch.device) -> float:
    """Bytes a second of the fastest of ten sums over a large buffer: 512 MiB on a CPU, 4 GiB on a
    GPU, or a quarter of its free memory."""
    nbytes = _CEILING_BYTES[device.type]
    if device.type == "cuda":
        nbytes = min(nbytes, torch.cuda.mem_get_info(device)[0] // 4)
    data = torch.ones(nbytes // 4, device=device)
    best_s = min(_seconds(data.sum, device) for _ in range(10))
    return data.nbytes / best_s / 1e9


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        start_s = time.perf_counter()
        call()
        return time.perf_counter() - start_s
    with torch.cuda.device(device):
        begin, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        begin.record()
        call()
        end.record()
        end.synchronize()
        elapsed_ms: float = begin.elapsed_time(end)
        return elapsed_ms / 1e3


def describe(device: torch.device, backend: Backend, *, cold: bool) -> dict[str, Any]:
    """The head of a result file: what was measured, on what, how."""
    from nf12 import __version__

    facts = {
        "device": device_name(device),
        "backend": backend.value,
        "driver": driver_version(device),
        "gpu": gpu_facts(device),
        "torch": str(torch.__version__),
        "nf12": __version__,
        "date": datetime.date.today().isoformat(),
        "mode": "cold" if cold else "warm",
        "dense": "torch.mm" if device.type == "cuda" else "torch.nn.functional.linear",
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "read_gb_per_s": round(read_ceiling_gb_per_s(device), 2),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}
