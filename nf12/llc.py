"""Size of a ROCm GPU's last-level cache: what a cold benchmark has to flush.

Asked in this order: the variable NF12_LLC_BYTES, the level-3 caches of the KFD topology, a table by
architecture.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
VARIABLE = "NF12_LLC_BYTES"

_MIB = 1 << 20
_BYTES_BY_ARCH = {
    "gfx1201": 64 * _MIB,
    "gfx1200": 32 * _MIB,
    "gfx1100": 96 * _MIB,
    "gfx1151": 32 * _MIB,
}


@dataclass(frozen=True)
class KfdGpu:
    """One GPU node of the KFD topology."""

    node: int
    arch: str  # "gfx1201"
    uuid: str  # as ROCR_VISIBLE_DEVICES spells it, "GPU-" and 16 hex digits
    llc_bytes: int | None  # None where the kernel driver lists no level-3 cache


def llc_bytes(
    device: torch.device | str | int | None = None, *, kfd_nodes: Path = KFD_NODES
) -> int | None:
    """Bytes of the last-level cache of a ROCm device, None where torch is not built for ROCm.

    `device` is a torch device or index, by default the current one. NF12_LLC_BYTES (a positive
    number of bytes) overrides every other source; ValueError if it is anything else.
    """
    forced = os.environ.get(VARIABLE)
    if forced is not None:
        if not forced.isdecimal() or int(forced) == 0:
            raise ValueError(f"nf12: {VARIABLE} is {forced!r}, must be a positive number of bytes")
        return int(forced)
    if torch.version.hip is None:
        return None
    ordinal = _ordinal(device)
    if ordinal is None:
        return None
    gpus = visible_gpus(kfd_gpus(kfd_nodes))
    gpu = gpus[ordinal] if ordinal < len(gpus) else None
    arch = _torch_arch(ordinal) or (gpu.arch if gpu else None)
    # Another architecture at that place means that torch counts its devices in another order.
    if gpu is not None and gpu.arch == arch and gpu.llc_bytes is not None:
        return gpu.llc_bytes
    return _BYTES_BY_ARCH.get(arch) if arch else None


def kfd_gpus(nodes: Path = KFD_NODES) -> list[KfdGpu]:
    """GPU nodes in numeric order, the order that ROCm counts them in; CPU nodes are left out."""
    numbers = sorted(int(p.name) for p in nodes.glob("*") if p.name.isdecimal())
    gpus = []
    for number in numbers:
        node = nodes / str(number)
        properties = _properties(node / "properties")
        version = properties.get("gfx_target_version", 0)
        if properties.get("simd_count", 0) == 0 or version == 0:
            continue
        caches = [_properties(path) for path in (node / "caches").glob("*/properties")]
        # Compute dies each list the one cache they share: the largest, not the sum.
        llc_kib = max((c.get("size", 0) for c in caches if c.get("level") == 3), default=0)
        gpus.append(
            KfdGpu(
                node=number,
                arch=arch_name(version),
                uuid=f"GPU-{properties.get('unique_id', 0):016x}",
                llc_bytes=llc_kib * 1024 or None,
            )
        )
    return gpus


def arch_name(gfx_target_version: int) -> str:
    """120001 -> "gfx1201", 90010 -> "gfx90a"."""
    major, rest = divmod(gfx_target_version, 10000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}"


def visible_gpus(gpus: list[KfdGpu]) -> list[KfdGpu]:
    """The GPUs that this process may use, in its order.

    ROCR_VISIBLE_DEVICES (indices or UUIDs) filters first; HIP_VISIBLE_DEVICES, or else its synonym
    CUDA_VISIBLE_DEVICES, then counts within what is left. As in ROCm the first entry that names no
    device ends the list.
    """
    gpus = _select(gpus, os.environ.get("ROCR_VISIBLE_DEVICES"))
    hip = os.environ.get("HIP_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
    return _select(gpus, hip)


def _select(gpus: list[KfdGpu], variable: str | None) -> list[KfdGpu]:
    if variable is None:
        return gpus
    chosen: list[KfdGpu] = []
    for entry in variable.split(","):
        entry = entry.strip()
        if entry.isdecimal():
            found = gpus[int(entry) : int(entry) + 1]
        else:
            found = [gpu for gpu in gpus if gpu.uuid.lower() == entry.lower()]
        if not found:
            break
        chosen += found[:1]
    return chosen


def _properties(path: Path) -> dict[str, int]:
    """`name number` lines of a topology file; empty where it cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdecimal()}


def _ordinal(device: torch.device | str | int | None) -> int | None:
    """Torch's index of a GPU, None for a device that is not one."""
    if isinstance(device, int):
        return device
    if device is not None:
        device = torch.device(device)
        if device.type != "cuda":
            return None
        if device.index is not None:
            return device.index
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


def _torch_arch(ordinal: int) -> str | None:
    if not torch.cuda.is_available() or ordinal >= torch.cuda.device_count():
        return None
    name: str = getattr(torch.cuda.get_device_properties(ordinal), "gcnArchName", "")
    return name.partition(":")[0] or None
