"""scripts/dump_isa.py: kernels that meet every bar, and kernels that each miss one it must name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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

    def compile_and_dump(tokens: int, config: str, compiler: str | None = CLANG) -> tuple[int, str]:
        if compiler is None or shutil.which(compiler) is None:
            pytest.skip(f"{compiler or 'clang 20 or later'} is not on PATH")
        source, out = tmp_path / "probe.cpp", tmp_path / "probe.co"
        source.write_text(SOURCE.format(tokens=tokens, config=config))
        subprocess.run([compiler, *FLAGS, "-o", str(out), str(source)], check=True)
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


def test_code_without_waits_for_scalar_registers_is_refused(dump: Dump) -> None:
    """LLVM 19 does not know the hazard; what it compiles may compute anything on a card."""
    code, text = dump(2, "fused_config(2)", "clang-19")
    assert code == 1, text
    assert "reads of scalar registers that may see an old value" in text


def test_no_kernels_is_no_success(dump: Dump, tmp_path: Path) -> None:
    dump(2, "fused_config(2)")
    stripped = tmp_path / "none.co"
    text = (tmp_path / "probe.cpp").read_text().replace("_fused_m2", "_other")
    (tmp_path / "probe.cpp").write_text(text)
    assert CLANG is not None
    subprocess.run([CLANG, *FLAGS, "-o", str(stripped), str(tmp_path / "probe.cpp")], check=True)
    result = subprocess.run(
        [sys.executable, str(ROOT / "scripts/dump_isa.py"), str(stripped)], check=False
    )
    assert result.returncode == 2
