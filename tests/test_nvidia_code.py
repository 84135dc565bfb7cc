"""What device code may use of <bit>, and the registers of kernels that trade them.

nvcc 13.0 accepts std::countr_zero and makes a constant of it (32, or a call of an unrelated
function), without a word."""

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

# Kernels whose waves trade registers: what one warpgroup of a block gives up, the others take.
TRADERS = {
    *(f"gemm_warpgroup_t{tokens}" for tokens in (48, 64, 80, 96)),
    *(f"gemm_wide_t{tokens}" for tokens in (128, 192, 256)),
    "gemm_once_t256",
}
KEEPERS = {f"gemm_warpgroup_t{tokens}" for tokens in (32, 128, 192, 256)}
USAGE = r"Function nf12_(\w+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)"
FUNCTION = r"^\s+Function : nf12_(\w+)$"
MOST_THREADS = r"^\.nv\.info\.nf12_(\w+)$.*?EIATTR_MAX_THREADS\s+Format:\s*\w+\s+Value:\s+(0x\w+)"
UNITS = ("gemm_warpgroup", "gemm_wide", "gemm_once")  # that they are in
# A few words, of what an H200 runs only where rows are at odd addresses or k has a tail.
SPILLERS = {"gemm_matrix_t16", "gemm_matrix_t32", "unpack_tile_a2", "unpack_tile_a4"}
REGISTERS, WARPGROUP = 65536, 128  # of a multiprocessor; threads


def listing(*options: str, units: tuple[str, ...] = UNITS) -> str:
    """What cuobjdump says of their fatbins, or of others; of all if none is named."""
    if shutil.which("cuobjdump") is None or shutil.which("nvdisasm") is None:
        code_objects.do_without("cuobjdump or nvdisasm is not on PATH")
    paths = [path for path in code_objects.files("fatbin") if not units or path.stem in units]
    commands = (["cuobjdump", *options, str(path)] for path in paths)
    return "".join(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for command in commands
    )


def code_by_kernel() -> dict[str, str]:
    _, *parts = re.split(FUNCTION, listing("-sass"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def usage(units: tuple[str, ...] = UNITS) -> dict[str, tuple[int, ...]]:
    """Registers of every thread at the launch, bytes of the stack, bytes of local memory."""
    text = listing("-arch", "sm_90a", "-res-usage", units=units)
    return {name: tuple(map(int, used)) for name, *used in re.findall(USAGE, text)}


def test_no_more_registers_are_taken_than_the_launch_gave() -> None:
    """`setmaxnreg.inc` would wait for the rest for ever. One warpgroup gives, all others take."""
    threads = re.findall(MOST_THREADS, listing("-elf"), re.MULTILINE | re.DOTALL)
    block = {name: int(count, 16) for name, count in threads}
    code, used = code_by_kernel(), usage()
    assert used.keys() == block.keys() == code.keys() == TRADERS | KEEPERS
    for name, (at_entry, *_) in used.items():
        # What the plans count on: all that there are, shared out evenly.
        assert name in KEEPERS or at_entry == REGISTERS // block[name] // 8 * 8, name
        assert at_entry * block[name] <= REGISTERS, name
        trades = re.findall(r"USETMAXREG\.(TRY_ALLOC|DEALLOC)\S* (?:UP\d, )?(0x\w+)", code[name])
        if name in KEEPERS:
            assert trades == [], name
            continue
        assert sorted(kind for kind, _ in trades) == ["DEALLOC", "TRY_ALLOC"], name
        after = {kind: int(count, 16) for kind, count in trades}
        wanted = (block[name] - WARPGROUP) * after["TRY_ALLOC"] + WARPGROUP * after["DEALLOC"]
        assert after["DEALLOC"] < at_entry < after["TRY_ALLOC"], name
        assert wanted <= block[name] * at_entry, f"{name} takes {after} of {at_entry}"


def test_kernels_of_sm_90a_spill_none() -> None:
    """Spills in its loop took the stream kernel for 16 tokens from 1.24 of dense to 1.01."""
    for name, text in code_by_kernel().items():
        assert not re.search(r"\b(STL|LDL)\b", text), f"{name} spills"
    used = usage(units=())
    assert {
        "gemm_stream_t8",
        "gemm_stream_t16",
        "gemm_stream_t32",
        "gemm_cluster_t64",
        *TRADERS,
    } <= used.keys()
    stacks = {name: rest for name, (_, *rest) in used.items() if rest != [0, 0]}
    assert stacks.keys() <= SPILLERS and max(map(sum, stacks.values()), default=0) <= 16, stacks


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
