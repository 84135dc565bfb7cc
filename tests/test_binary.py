"""The shipped libnf12.so: what it needs, what it shows, and what it was built from."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nf12._library import LIBRARY, introspection

SOURCE = Path(__file__).resolve().parent.parent
CSRC = SOURCE / "csrc"

# torch's CPU library and the C / C++ runtime; libm, libdl and libpthread are part of libc by now.
RUNTIME = re.compile(
    r"libtorch_cpu\.so|libstdc\+\+\.so\.6|libgcc_s\.so\.1|lib(c|m|dl|pthread)\.so\.\d+"
    r"|ld-linux-[\w-]+\.so\.\d+"
)
# Ubuntu 22.04 and Debian 12: what g++ 12 builds runs on every newer distribution.
NEWEST = {"GLIBC": (2, 36), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0)}

needs_binutils = pytest.mark.skipif(
    shutil.which("nm") is None or shutil.which("readelf") is None, reason="no nm and readelf here"
)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(which: str, path: Path = LIBRARY) -> list[str]:
    lines = run("nm", "-D", "-C", which, str(path)).splitlines()
    return [line[19:] if which == "--defined-only" else line.strip() for line in lines]


@needs_binutils
def test_needs_torchs_cpu_library_and_the_runtime_only() -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", str(LIBRARY)))
    assert "libtorch_cpu.so" in needed
    assert not [name for name in needed if not RUNTIME.fullmatch(name)]


@needs_binutils
def test_no_path_of_the_build_machine_is_searched() -> None:
    assert not re.findall(r"\((?:RPATH|RUNPATH)\)", run("readelf", "-d", str(LIBRARY)))
    module = run("readelf", "-d", introspection.__file__)
    assert re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.+)\]", module) == ["$ORIGIN/lib"]


@needs_binutils
def test_only_torchs_stable_functions_are_used() -> None:
    undefined = symbols("--undefined-only")
    assert any("aoti_torch_empty_strided" in name for name in undefined)
    unstable = re.compile(r"\b(c10|at|torch|caffe2|pybind11)::|\b_?Py[A-Z_]")
    assert not [name for name in undefined if unstable.search(name)]


@needs_binutils
def test_shows_the_introspection_functions_only() -> None:
    defined = {line.split()[-1] for line in symbols("--defined-only")}
    header = (CSRC / "python" / "introspection.h").read_text()
    assert defined == set(re.findall(r"\b(nf12_\w+)\(", header))


@needs_binutils
def test_runs_on_older_distributions() -> None:
    versions = re.findall(r"\b(GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)", run("nm", "-D", str(LIBRARY)))
    assert versions
    for name, version in versions:
        assert tuple(map(int, version.split("."))) <= NEWEST[name], f"{name}_{version}"


@needs_binutils
def test_stack_is_not_executable() -> None:
    headers = run("readelf", "-lW", str(LIBRARY))
    assert re.search(r"GNU_STACK.* RW ", headers)


def test_was_built_from_these_sources() -> None:
    files = sorted(
        path.relative_to(SOURCE).as_posix()
        for suffix in ("hpp", "cpp", "h")
        for path in CSRC.rglob(f"*.{suffix}")
    )
    lines = "".join(
        f"{hashlib.sha256((SOURCE / name).read_bytes()).hexdigest()}  {name}\n" for name in files
    )
    built = introspection.build_info()["source_hash"]
    assert built == hashlib.sha256(lines.encode()).hexdigest(), (
        "the installed library was built from other sources than this tree's: build it again"
    )


def test_sha256_is_reported(record_property: pytest.RecordProperty) -> None:
    digest = hashlib.sha256(LIBRARY.read_bytes()).hexdigest()
    record_property("libnf12_sha256", digest)
    print(f"{digest}  {LIBRARY.name}")
    assert LIBRARY.stat().st_size < 64 << 20


# ---- the include rule ---------------------------------------------------------------------------

# What a room may include besides itself: csrc/README.md.
ROOMS = {
    "arch": set(),
    "format": {"arch"},
    "gemm": {"arch", "format"},
    "unpack": {"arch", "format"},
    "gather": {"arch", "format"},
    "pack": {"arch", "format"},
    "cpu": {"arch", "format"},
    "runtime": {"arch/words.hpp"},
    "gpu": {"arch", "format", "gemm", "unpack", "gather", "pack", "cpu", "runtime"},
    "torch": {
        "arch",
        "format",
        "gemm",
        "unpack",
        "cpu",
        "runtime",
        "gpu",
        "python/introspection.h",
    },
    "python": set(),
}


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def sources(room: str) -> list[Path]:
    return [p for p in (CSRC / room).rglob("*") if p.suffix in (".hpp", ".cpp", ".h")]


PRESENT = sorted(path.name for path in CSRC.iterdir() if path.is_dir())


def test_every_room_has_its_rule() -> None:
    assert set(PRESENT) <= set(ROOMS)


@pytest.mark.parametrize("room", PRESENT)
def test_includes_point_one_way(room: str) -> None:
    assert sources(room)
    allowed = ROOMS[room] | {room}
    for path in sources(room):
        for name in includes(path):
            if name.startswith("csrc/"):
                inner = name.removeprefix("csrc/")
                assert inner in allowed or inner.split("/")[0] in allowed, f"{path} takes {name}"


@pytest.mark.parametrize("room", PRESENT)
def test_torch_headers_in_one_room(room: str) -> None:
    for path in sources(room):
        names = includes(path)
        if room != "torch":
            assert not [n for n in names if n.startswith(("torch/", "ATen/", "c10/"))], path
        if room != "python":
            assert not [n for n in names if n.startswith(("pybind11", "Python.h"))], path
