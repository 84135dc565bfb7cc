"""The GPU code objects of a build, as files.

NF12_CODE_OBJECTS names the folder; else the newest `gpu` folder of a build under build/ is taken.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[1]


def do_without(what: str) -> NoReturn:
    """Skips for want of a compiler or its output; where NF12_REQUIRE_COMPILERS is set, fails."""
    if os.environ.get("NF12_REQUIRE_COMPILERS"):
        pytest.fail(f"{what}, and NF12_REQUIRE_COMPILERS is set")
    pytest.skip(what)


def folder() -> Path | None:
    if named := os.environ.get("NF12_CODE_OBJECTS"):
        return Path(named)
    built = [path.parent for path in ROOT.glob("build/*/gpu/*/*.co")]
    newest = max(built, key=lambda path: path.stat().st_mtime, default=None)
    return newest.parent if newest else None


def files(suffix: str = "co") -> list[Path]:
    """All of one kind: co for gfx targets, fatbin for NVIDIA."""
    found = folder()
    built = sorted(found.rglob(f"*.{suffix}")) if found else []
    if not built:
        do_without(f"no .{suffix} in {found or 'build/*/gpu'}: build with NF12_GPU_TARGETS=all")
    return built


def path(target: str, unit: str) -> Path:
    """One code object: path("gfx1201", "gemm_fused")."""
    found = folder()
    file = found / target / f"{unit}.co" if found else None
    if file is None or not file.is_file():
        do_without(f"no {file or 'build/*/gpu'}: build with NF12_GPU_TARGETS={target}")
    return file
