"""The cache of what `nf12 tune` measured: the fastest gemm kernel by shape and tokens, of one GPU
model with one driver and one build of the library.

A table is given to the library when a backend is first resolved for a GPU. One that is missing, of
another driver or build, or damaged is no table: the library's own rules go on. NF12_TUNE=0 ignores
every table, NF12_CACHE names another folder than the user's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nf12.backend import build_info, introspection
from nf12.machine import device_name, driver_version

SWITCH, FOLDER = "NF12_TUNE", "NF12_CACHE"
MOST_TOKENS = 2**63 - 1
_VERSION = 1  # of the file
_MOST_BYTES = 16 << 20  # of a file worth reading


@dataclass(frozen=True)
class Tuned:
    """The fastest kernel for x [m, k] and a weight [n, k], m from m_first to m_last."""

    n: int
    k: int
    m_first: int
    m_last: int
    kernel: str


def folder() -> Path:
    """Of this user's caches of the library."""
    named = os.environ.get(FOLDER)
    if named:
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "nf12"


def key(device: torch.device) -> dict[str, str]:
    """What a table is of: equal keys, equal speed."""
    from nf12 import __version__

    return {
        "gpu": device_name(device),
        "driver": driver_version(device) or "none",
        "nf12": __version__,
        "build": build_info()["source_hash"],
    }


def path(device: torch.device) -> Path:
    """Of the table of a GPU, whether or not it is there."""
    return _path(key(device))


def _path(facts: dict[str, str]) -> Path:
    name = "-".join((facts["gpu"], facts["driver"], facts["nf12"], facts["build"][:12]))
    slug = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
    return folder() / f"tune-{slug}.json"


# ---- the file ------------------------------------------------------------------------------------


def read(device: torch.device) -> tuple[list[Tuned], str | None]:
    """The rows of a GPU's table, and why there are none: never an error."""
    if os.environ.get(SWITCH, "") == "0":
        return [], f"{SWITCH}=0"
    try:
        if not any(folder().glob("tune-*.json")):
            return [], "not tuned"  # before anything is asked of the GPU
        facts = key(device)
        file = _path(facts)
        if not file.exists():
            return [], "not tuned with this driver and build"
        if file.stat().st_size > _MOST_BYTES:
            return [], f"{file} is too large"
        document = json.loads(file.read_text())
        if document["version"] != _VERSION or document["key"] != facts:
            return [], f"{file} is of another GPU, driver or build"
        return [_row(fields) for fields in document["rows"]], None
    except Exception as error:  # a cache: whatever is wrong with it, there is none
        return [], f"the table cannot be read: {type(error).__name__}: {error}"


def _row(fields: Any) -> Tuned:
    row = Tuned(**fields)
    sizes = (row.n, row.k, row.m_first, row.m_last)
    if not all(type(size) is int and 1 <= size <= MOST_TOKENS for size in sizes):
        raise ValueError(f"no sizes: {sizes}")
    if row.m_last < row.m_first or row.kernel not in introspection().gpu_kernels():
        raise ValueError(f"no row: {row}")
    return row


def write(device: torch.device, rows: Sequence[Tuned], measured: Sequence[dict[str, Any]]) -> Path:
    """Puts `rows` in the place of the table's rows of the same shapes. `measured` is kept beside
    them for a reader. Another process sees the old table or the new one."""
    shapes = {(row.n, row.k) for row in rows}
    kept = [row for row in read(device)[0] if (row.n, row.k) not in shapes]
    document = {
        "version": _VERSION,
        "key": key(device),
        "rows": [asdict(row) for row in sorted([*kept, *rows], key=_order)],
        "measured": list(measured),
    }
    target = path(device)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".tune-")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(document, file, indent=1)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    return target


def _order(row: Tuned) -> tuple[int, int, int]:
    return row.n, row.k, row.m_first


def forget(device: torch.device) -> bool:
    """Deletes the table of a GPU and takes it from the library; whether there was one."""
    try:
        path(device).unlink()
    except FileNotFoundError:
        return False
    finally:
        give(device, [])
    return True


# ---- the library ---------------------------------------------------------------------------------


def load(index: int) -> str | None:
    """Gives the library the table of GPU `index`, if there is one; else says why there is none."""
    device = torch.device("cuda", index)
    rows, reason = read(device)
    if not rows:
        return reason or "the table is empty"
    try:
        give(device, rows)
    except Exception as error:
        return f"the library does not take the table: {error}"
    return None


def give(device: torch.device, rows: Sequence[Tuned]) -> None:
    """From now on the library chooses by `rows`, before its own rules."""
    numbers = [(row.n, row.k, row.m_first, row.m_last, row.kernel) for row in rows]
    introspection().set_gemm_table(device.index or 0, numbers)


def state(index: int) -> str:
    """For `nf12 info`: how many rows the table of a GPU has, or why there are none."""
    rows, reason = read(torch.device("cuda", index))
    return reason or f"{len(rows)} rows"
