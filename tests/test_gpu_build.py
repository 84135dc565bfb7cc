"""Which GPU kernels a build takes (NF12_GPU_TARGETS), and that it gives the same bytes anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import code_objects
import pytest

ROOT = Path(__file__).resolve().parents[1]
NO_CLANG, NO_NVCC = "-DNF12_CLANG=/nowhere/clang", "-DNF12_NVCC=/nowhere/nvcc"

Configure = Callable[..., tuple[int, str]]


def run(*command: str | Path, **options: object) -> tuple[int, str]:
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cmake") is None:
        code_objects.do_without("no cmake on PATH")
    return tmp_path_factory.mktemp("gpu_build")


@pytest.fixture
def configure(folder: Path, tmp_path: Path) -> Configure:
    """CMake's answer to NF12_GPU_TARGETS on a machine with given GPUs, its text in one line."""

    def answer(targets: str, *options: str, amd: tuple[int, ...] = (), nvidia: str = "") -> tuple[
        int, str
    ]:  # fmt: skip
        for node, version in enumerate((0, *amd)):  # node 0 is a CPU
            place = tmp_path / "nodes" / str(node)
            place.mkdir(parents=True)
            (place / "properties").write_text(f"simd_count 4\ngfx_target_version {version}\n")
        smi = tmp_path / "bin" / "nvidia-smi"
        smi.parent.mkdir()
        smi.write_text(f"#!/bin/sh\necho '{nvidia}'\n")
        smi.chmod(0o755)
        code, text = run(
            *("cmake", "-S", ROOT, "-B", folder, "-UNF12_*", "-DNF12_BUILD_TORCH=OFF"),
            *(f"-DNF12_GPU_TARGETS={targets}", f"-DNF12_KFD_NODES={tmp_path / 'nodes'}", *options),
            env=os.environ | {"PATH": f"{smi.parent}{os.pathsep}{os.environ['PATH']}"},
        )
        return code, " ".join(text.split())

    return answer


def need_compiler(text: str) -> None:
    if "left out" in text or "cannot be built" in text:
        code_objects.do_without(text)


@pytest.mark.parametrize("targets", ["none", "auto"])
def test_no_kernels_without_a_gpu(configure: Configure, targets: str) -> None:
    code, text = configure(targets)
    assert code == 0, text
    assert f"GPU kernels: none (NF12_GPU_TARGETS is {targets})" in text


def test_auto_takes_the_gpus_of_the_machine(configure: Configure) -> None:
    code, text = configure("auto", amd=(120001, 120001), nvidia="GPU 0: Some Card (UUID: GPU-1)")
    need_compiler(text)
    assert code == 0, text
    assert "GPU kernels for gfx1201: " in text and "GPU kernels for NVIDIA (sm): " in text
    assert "gfx1200" not in text


def test_auto_knows_its_gpus_by_name(configure: Configure) -> None:
    code, text = configure("auto", amd=(110000, 90010, 120500))
    assert code == 0, text
    assert "GPU kernels: none" in text


def test_auto_says_what_it_leaves_out(configure: Configure) -> None:
    code, text = configure("auto", NO_CLANG, NO_NVCC, amd=(120000,), nvidia="GPU 0: Some Card")
    assert code == 0, text
    for target, compiler in (("gfx1200", "clang >= 20"), ("sm", "nvcc >= 12.3")):
        assert f"has a GPU for target {target}, its kernels are left out: no {compiler}" in text
    assert "GPU kernels: none" in text


@pytest.mark.parametrize(
    ("targets", "option", "reason"),
    [
        ("gfx1201", NO_CLANG, "target gfx1201 of NF12_GPU_TARGETS cannot be built: no clang >= 20"),
        ("sm", NO_NVCC, "target sm of NF12_GPU_TARGETS cannot be built: no nvcc >= 12.3"),
        ("all", NO_CLANG, "target gfx1200 of NF12_GPU_TARGETS cannot be built: no clang >= 20"),
    ],
)
def test_what_is_asked_for_must_be_built(
    configure: Configure, targets: str, option: str, reason: str
) -> None:
    code, text = configure(targets, option)
    assert code != 0
    assert reason in text


def test_an_older_clang_is_none(configure: Configure, tmp_path: Path) -> None:
    old = tmp_path / "clang-22"
    old.write_text("#!/bin/sh\necho 'Some clang version 19.1.7 (x)'\n")
    old.chmod(0o755)
    code, text = configure("gfx1201", f"-DNF12_CLANG={old}")
    assert code != 0
    assert "cannot be built: no clang >= 20" in text


def test_a_clang_without_its_linker_is_named(configure: Configure, tmp_path: Path) -> None:
    bare = tmp_path / "clang-22"
    bare.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "clang version 22.1.8" && exit 0\n'
        'echo "clang: error: invalid linker name" >&2\nexit 1\n'
    )
    bare.chmod(0o755)
    code, text = configure("gfx1201", f"-DNF12_CLANG={bare}")
    assert code != 0
    assert "makes no gfx12 code objects (is lld missing?): clang: error: invalid linker" in text


@pytest.mark.parametrize("targets", ["gfx1201,gfx1200", "gfx1201;gfx1200;gfx1201"])
def test_a_list_of_targets(configure: Configure, targets: str) -> None:
    code, text = configure(targets)
    need_compiler(text)
    assert code == 0, text
    assert text.count("GPU kernels for ") == 2


def test_an_unknown_target_is_refused(configure: Configure) -> None:
    code, text = configure("gfx1201;gfx1100")
    assert code != 0
    assert (
        "NF12_GPU_TARGETS has 'gfx1100', expected auto, all, none or a list of gfx1200, gfx1201, sm"
    ) in text


@pytest.mark.timeout(600)
def test_the_source_distribution_builds_the_same_bytes(tmp_path: Path) -> None:
    """From another folder, whose name has a space, with what the sdist holds and nothing else."""
    shipped = code_objects.files()
    target = shipped[-1].parent.name
    make = "import sys, setuptools.build_meta as b; print(b.build_sdist(sys.argv[1]))"
    code, text = run(sys.executable, "-c", make, tmp_path, cwd=ROOT)
    assert code == 0, text
    with tarfile.open(tmp_path / text.split()[-1]) as archive:
        archive.extractall(tmp_path / "another place")
    (source,) = (tmp_path / "another place").iterdir()
    for folder in ("csrc", "cmake", "nf12", "tests", "scripts", "docs", "benchmarks"):
        code, listed = run("git", "ls-files", folder, cwd=ROOT)
        if code == 0:
            missing = [name for name in listed.split() if not (source / name).exists()]
            assert not missing, f"the sdist lacks {missing}"

    wanted = [path for path in shipped if path.parent.name == target]
    targets = target
    if (code_objects.folder() / "sm").is_dir():  # type: ignore[operator]
        wanted += [p for p in code_objects.files("fatbin") if p.stem in ("check", "gather")]
        targets += ";sm"
    options = ("-DNF12_BUILD_TORCH=OFF", f"-DNF12_GPU_TARGETS={targets}")
    code, text = run("cmake", "-S", source, "-B", source / "build", "-G", "Ninja", *options)
    need_compiler(text)
    assert code == 0, text
    names = [f"gpu/{path.parent.name}/{path.name}" for path in wanted]
    code, text = run("cmake", "--build", source / "build", "--target", *names)
    assert code == 0, text
    for path, name in zip(wanted, names, strict=True):
        assert (source / "build" / name).read_bytes() == path.read_bytes(), f"{name} differs"
