"""Every seeded fault must make the tests fail.

C++ faults are built into the one test program that has to notice them (overlay.py), and meet that
program, or those of its tests that are named with the fault; Python faults go into a copy of the
package and meet the named pytest file. Two at a time, all in the first test's set-up.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from mutant import Mutant
from mutants import MUTANTS
from overlay import Build, run

import nf12

ROOT = Path(__file__).resolve().parents[2]
CPP = [m for m in MUTANTS if not m.noticed_by.endswith(".py")]
PYTHON = [m for m in MUTANTS if m.noticed_by.endswith(".py")]
PROGRAMS = sorted({m.noticed_by.split()[0] for m in CPP})
HANGS_AFTER_S = 180


def mutated(mutant: Mutant, root: Path) -> str:
    """The file with its fault, which must fit in exactly one place."""
    text = (root / mutant.file).read_text()
    assert text.count(mutant.old) == 1, f"{mutant.name} fits {text.count(mutant.old)} places"
    return text.replace(mutant.old, mutant.new)


def check_cpp(mutant: Mutant, build: Build, folder: Path) -> None:
    program, *tests = mutant.noticed_by.split()
    outcome = build.with_file(program, mutant.file, mutated(mutant, ROOT), folder)
    if outcome.is_refused:
        return
    assert outcome.returncode == 0, f"a fault must compile\n{outcome.text}"
    try:
        done = run(str(folder / program), "-x", *tests, cwd=folder, timeout=HANGS_AFTER_S)
    except subprocess.TimeoutExpired:
        return
    finally:
        shutil.rmtree(folder)
    assert done.returncode != 0, f"{mutant.noticed_by} passed with the fault in place"
    assert "0 of 0 tests" not in done.stdout, f"no such test: {mutant.noticed_by}"


def check_python(mutant: Mutant, folder: Path) -> None:
    package = folder / "nf12"
    shutil.copytree(Path(nf12.__file__).parent, package)
    (folder / mutant.file).write_text(mutated(mutant, folder))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", mutant.noticed_by],
        cwd=ROOT / "tests",
        env=os.environ | {"PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, f"pytest answered {done.returncode}\n{done.stdout}"


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[None]]]:
    """The faults that this run asks for, on their way."""
    folder = tmp_path_factory.mktemp("mutations")
    asked = {item.callspec.params["mutant"].name for item in request.session.items
             if item.path == Path(__file__) and hasattr(item, "callspec")}  # fmt: skip
    programs = sorted({m.noticed_by.split()[0] for m in CPP if m.name in asked})
    build = None
    if programs:
        if shutil.which("cmake") is None or shutil.which("ninja") is None:
            if os.environ.get("CI"):
                pytest.fail("cmake and ninja are needed")
            pytest.skip("cmake and ninja are not installed")
        build = Build(ROOT, ROOT / "build" / "mutations", programs)
    with ThreadPoolExecutor(max_workers=2) as pool:
        futures = {}
        for program in programs:
            assert build is not None
            futures[program] = pool.submit(check_sound, build, program)
        for mutant in MUTANTS:
            if mutant.name not in asked:
                continue
            place = folder / mutant.name
            if mutant in PYTHON:
                futures[mutant.name] = pool.submit(check_python, mutant, place)
            else:
                assert build is not None
                futures[mutant.name] = pool.submit(check_cpp, mutant, build, place)
        yield futures
        for future in futures.values():
            future.cancel()


def check_sound(build: Build, program: str) -> None:
    """Those tests of a program that faults are to make fail pass without one."""
    named = [m.noticed_by.split()[1:] for m in CPP if m.noticed_by.split()[0] == program]
    tests = sorted({test for names in named for test in names}) if all(named) else []
    done = run(str(build.program(program)), *tests, cwd=build.folder, timeout=HANGS_AFTER_S)
    assert done.returncode == 0, f"the tests must pass without a fault\n{done.stdout}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_fault_has_its_place(mutant: Mutant) -> None:
    """In a second and before anything is built, so that no change of code lands without it."""
    mutated(mutant, Path(nf12.__file__).parents[1] if mutant in PYTHON else ROOT)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_fault_is_noticed(mutant: Mutant, results: dict[str, Future[None]]) -> None:
    if mutant in CPP:
        results[mutant.noticed_by.split()[0]].result()
    results[mutant.name].result()


def test_there_are_enough() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 80
