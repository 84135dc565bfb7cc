"""Every seeded fault of mutants.py must make the tests fail.

C++ faults are built into one copy of the sources, one after the other, and meet the C++ tests;
Python faults go into a copy of the package and meet the named pytest file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mutants import MUTANTS, Mutant

import nf12

ROOT = Path(__file__).resolve().parents[2]
CPP = [m for m in MUTANTS if not m.noticed_by.endswith(".py")]
PYTHON = [m for m in MUTANTS if m.noticed_by.endswith(".py")]


def mutate(mutant: Mutant, root: Path) -> None:
    """Applies the fault, which must fit in exactly one place."""
    path = root / mutant.file
    text = path.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.name} fits {text.count(mutant.old)} places"
    path.write_text(text.replace(mutant.old, mutant.new))


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )


class Tree:
    """A copy of the C++ sources and its build folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("csrc", "cmake", "tests/cpp"):
            shutil.copytree(ROOT / name, root / name)
        for name in ("CMakeLists.txt", "pyproject.toml"):
            shutil.copy(ROOT / name, root / name)
        options = ("-DNF12_BUILD_TESTS=ON", "-DNF12_BUILD_TORCH=OFF", "-DCMAKE_BUILD_TYPE=None")
        done = run(
            "cmake", "-S", ".", "-B", "build", "-G", "Ninja", "-DCMAKE_CXX_FLAGS=-O1", *options,
            cwd=root,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout

    def build(self, *targets: str) -> bool:
        """Whether it builds; a static_assert may say no, a mere slip of the mutant may not."""
        done = run("cmake", "--build", "build", "--target", *targets, cwd=self.root)
        is_refused = "static assertion failed" in done.stdout
        assert done.returncode == 0 or is_refused, f"a fault must compile\n{done.stdout}"
        return done.returncode == 0

    def test(self, *names: str) -> subprocess.CompletedProcess[str]:
        chosen = f"^({'|'.join(names)})$"
        return run(
            "ctest", "--test-dir", "build", "-R", chosen, "--no-tests=error", "--timeout", "120",
            cwd=self.root,
        )  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        if os.environ.get("CI"):
            pytest.fail("cmake and ninja are needed")
        pytest.skip("cmake and ninja are not installed")
    tree = Tree(tmp_path_factory.mktemp("mutations"))
    programs = sorted({m.noticed_by for m in CPP})
    assert tree.build(*programs)
    sound = tree.test(*programs)
    assert sound.returncode == 0, f"the tests must pass without a fault\n{sound.stdout}"
    return tree


@contextmanager
def fault(mutant: Mutant, tree: Tree) -> Iterator[None]:
    source = tree.root / mutant.file
    sound = source.read_text()
    mutate(mutant, tree.root)
    try:
        yield
    finally:
        source.write_text(sound)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", CPP, ids=lambda m: m.name)
def test_cpp_fault_is_noticed(mutant: Mutant, tree: Tree) -> None:
    with fault(mutant, tree):
        if not tree.build(mutant.noticed_by):
            return
        done = tree.test(mutant.noticed_by)
    assert done.returncode != 0, "the C++ tests passed with the fault in place"
    assert "% tests passed" in done.stdout, done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", PYTHON, ids=lambda m: m.name)
def test_python_fault_is_noticed(mutant: Mutant, tmp_path: Path) -> None:
    shutil.copytree(Path(nf12.__file__).parent, tmp_path / "nf12")
    mutate(mutant, tmp_path)
    done = run(
        sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", mutant.noticed_by,
        cwd=ROOT / "tests",
        PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 1, f"pytest answered {done.returncode}\n{done.stdout}"


def test_there_are_enough() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 20
