"""What a measurement is of: the names of the processor or GPU, and of its driver."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from nf12.backend import gpu_arch
from nf12.timing import cache_bytes

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
AMD_DRIVER = Path("/sys/module/amdgpu/version")


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
