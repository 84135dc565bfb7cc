"""scripts/dump_isa.py: kernels that meet every bar, and kernels that each miss one it must name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import code_objects
import pytest

ROOT = Path(__file__).resolve().parents[1]
CLANG = next(filter(shutil.which, (f"clang-{version}" for version in range(22, 19, -1))), None)
FLAGS = [
    *("-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc"),
    *("--offload-arch=gfx1201", "-O3", "-std=c++20", "-fuse-cuid=none", f"-I{ROOT}"),
]
SOURCE = """
#include "csrc/gemm/fused/instances/configs.hpp"
#include "csrc/gemm/fused/kernel.hpp"
namespace nf12 {{
NF12_KERNEL(256) probe_fused_m{tokens}(GemmParams p) {{ fused_gemm<{config}>(p); }}
}}
"""

Dump = Callable[..., tuple[int, str]]


@pytest.fixture
def dump(tmp_path: Path) -> Dump:
    """Compiles one fused kernel and returns dump_isa's exit code and text."""

    def compile_and_dump(tokens: int, config: str) -> tuple[int, str]:
        if CLANG is None:
            code_objects.do_without("no clang 20 or later on PATH")
        source, out = tmp_path / "probe.cpp", tmp_path / "probe.co"
        source.write_text(SOURCE.format(tokens=tokens, config=config))
        subprocess.run([CLANG, *FLAGS, "-o", str(out), str(source)], check=True)
        result = subprocess.run(
            [sys.executable, str(ROOT / "scripts/dump_isa.py"), str(out)],
            capture_output=True,
            text=True,
            check=False,
        )
        return result.returncode, result.stdout + result.stderr

    return compile_and_dump


def test_a_shipped_instance_meets_every_bar(dump: Dump) -> None:
    code, text = dump(2, "fused_config(2)")
    assert code == 0, text
    assert "1 kernels, every bar holds" in text


@pytest.mark.parametrize(
    ("tokens", "config", "fault"),
    [
        (16, "GemmConfig{16, 8, 2, 32, 0}", "bytes of scratch"),
        (1, "GemmConfig{1, 8, 2, 32, 0}", "1024 bytes of LDS, not 32768"),
        (3, "fused_config(2)", "dot2 a token a tile, not 16"),
    ],
    ids=["registers", "plane", "dot2"],
)
def test_a_missed_bar_is_named(dump: Dump, tokens: int, config: str, fault: str) -> None:
    code, text = dump(tokens, config)
    assert code == 1, text
    assert fault in text


def test_a_kernel_without_bars_is_named(dump: Dump, tmp_path: Path) -> None:
    dump(2, "fused_config(2)")
    assert CLANG is not None
    source, out = tmp_path / "probe.cpp", tmp_path / "other.co"
    source.write_text(source.read_text().replace("_fused_m2", "_other"))
    subprocess.run([CLANG, *FLAGS, "-o", str(out), str(source)], check=True)
    result = subprocess.run(
        [sys.executable, str(ROOT / "scripts/dump_isa.py"), str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "probe_other: no bars are known for it" in result.stdout


def test_no_kernels_is_no_success(dump: Dump, tmp_path: Path) -> None:
    dump(2, "fused_config(2)")
    stripped = tmp_path / "none.co"
    (tmp_path / "probe.cpp").write_text("int unused;\n")
    assert CLANG is not None
    subprocess.run([CLANG, *FLAGS, "-o", str(stripped), str(tmp_path / "probe.cpp")], check=True)
    result = subprocess.run(
        [sys.executable, str(ROOT / "scripts/dump_isa.py"), str(stripped)], check=False
    )
    assert result.returncode == 2
