"""The machine code that ships: every bar of docs/kernels.md, and the table in docs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import code_objects
import pytest

from nf12._library import LIBRARY, introspection

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
import gfx12_code

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "machine-code.md"
UPDATE = "scripts/dump_isa.py BUILD/gpu --markdown docs/machine-code.md"
PINNED_CLANG = 22

# The library's list, and what a family leaves out: the fused kernels stream through scalar
# registers, which NVIDIA lacks; what gfx lacks is built on NVIDIA's matrix instructions. Each
# family has an unpack of its own.
LISTED = (ROOT / "csrc/runtime/kernels.hpp").read_text().split("#define NF12_FOR_EACH_KERNEL", 1)[1]
KERNELS = set(re.findall(r"K\((\w+)\)", LISTED.split("// clang-format on")[0]))
ONLY_GFX = ("gemm_fused_", "unpack_a")
ONLY_NVIDIA = (
    "gemm_stream_",
    "gemm_cluster_",
    "gemm_warpgroup_",
    "gemm_wide_",
    "gemm_once_",
    "unpack_tile_",
)
GFX_KERNELS = {name for name in KERNELS if not name.startswith(ONLY_NVIDIA)}
NVIDIA_KERNELS = {name for name in KERNELS if not name.startswith(ONLY_GFX)}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, str]:
    """dump_isa's exit code, its text, and the table it writes, of all gfx targets."""
    code_objects.files()
    out = tmp_path_factory.mktemp("isa") / "machine-code.md"
    folder = code_objects.folder()
    command = [sys.executable, str(ROOT / "scripts/dump_isa.py"), str(folder), "--markdown"]
    done = subprocess.run([*command, str(out)], capture_output=True, text=True, check=False)
    if done.returncode == 2 and "not on PATH" in done.stderr:
        code_objects.do_without(done.stderr.strip())
    return done.returncode, done.stdout + done.stderr, out.read_text()


def test_every_bar_holds(dump: tuple[int, str, str]) -> None:
    code, text, _ = dump
    print(text)
    assert code == 0, text
    targets = len({path.parent for path in code_objects.files()})
    assert f"{targets * len(GFX_KERNELS)} kernels, every bar holds" in text


def without_hashes(text: str) -> str:
    return re.sub(r"`[0-9a-f]{64}`|^Compiler: .*$", "", text, flags=re.MULTILINE)


def test_the_table_is_what_ships(dump: tuple[int, str, str]) -> None:
    """Equal under the very compiler that the table names; under another build of the same clang
    only the hashes may differ."""
    _, _, found = dump
    kept = TABLE.read_text()
    compilers = {gfx12_code.compiler_of(path) for path in code_objects.files()}
    major = {int(re.search(r"clang version (\d+)", line)[1]) for line in compilers}  # type: ignore[index]
    if major != {PINNED_CLANG}:
        code_objects.do_without(f"the table is of clang {PINNED_CLANG}, not of {compilers}")
    if len({path.parent.name for path in code_objects.files()}) < 2:
        code_objects.do_without("this build has but one of the gfx targets")
    if f"Compiler: {', '.join(sorted(compilers))}\n" in kept:
        assert found == kept, f"the code changed: {UPDATE}"
    assert without_hashes(found) == without_hashes(kept), f"the code changed: {UPDATE}"


def test_every_gfx_target_has_its_kernels() -> None:
    held: dict[str, set[str]] = {}
    for path in code_objects.files():
        names = set(gfx12_code.notes(path)[1])
        held.setdefault(path.parent.name, set()).update(n.removeprefix("nf12_") for n in names)
    assert held and all(names == GFX_KERNELS for names in held.values())


def test_nvidia_has_its_kernels() -> None:
    held = set()
    for path in code_objects.files("fatbin"):
        held |= {n.decode() for n in re.findall(rb"\.text\.nf12_(\w+)\0", path.read_bytes())}
    assert held == NVIDIA_KERNELS


def test_the_library_carries_these_very_bytes() -> None:
    library = LIBRARY.read_bytes()
    paths = code_objects.files() + code_objects.files("fatbin")
    for path in paths:
        assert path.read_bytes() in library, f"{path} is not in {LIBRARY}"
    targets = introspection.build_info()["gpu_targets"]
    assert targets == list(dict.fromkeys(path.parent.name for path in paths))
