"""What device code may use of <bit>. nvcc 13.0 accepts std::countr_zero there and makes a constant
of it (32, or a call of an unrelated function), without a word."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import code_objects

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("arch/nvidia", "format", "gemm", "unpack", "gather", "pack")
INSTRUCTIONS = {"popcount": "popc.b32", "countl_zero": "clz.b32"}  # seen right on an H200
FUNCTIONS = r"std::(popcount|count[lr]_(?:zero|one)|bit_\w+|has_single_bit|rot[lr])\b"
FLAGS = ("-x", "cu", "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-ptx", "-arch=compute_90")


def test_kernels_use_no_other() -> None:
    used = {
        name
        for folder in FOLDERS
        for path in (ROOT / "csrc" / folder).rglob("*.hpp")
        for name in re.findall(FUNCTIONS, re.sub(r"//.*", "", path.read_text()))
    }
    assert used == set(INSTRUCTIONS)


def test_nvcc_compiles_them_to_instructions(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        code_objects.do_without("nvcc is not on PATH")
    source, ptx = tmp_path / "probe.cu", tmp_path / "probe.ptx"
    for name, instruction in INSTRUCTIONS.items():
        source.write_text(
            "#include <bit>\n"
            f'extern "C" __global__ void probe(unsigned* p) {{ p[0] = std::{name}(p[1]); }}\n'
        )
        subprocess.run(["nvcc", *FLAGS, str(source), "-o", str(ptx)], check=True)
        assert instruction in ptx.read_text(), name
