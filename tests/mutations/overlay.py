"""Builds a C++ test program with one file replaced, from an existing build, without touching either
the sources or that build: several faults can be tried at once.

The replaced file lies in a folder of its own that is searched first. What depends on it is compiled
there by the build's own commands, the rest is linked as it is.

A fault is compiled once and runs until it is noticed, so what counts is the compiler's time: the
standard library's headers are precompiled, the test programs with their kernels are not optimized,
unlike the libraries below them, and a clang is taken where there is one: half the time of GCC.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


def run(*command: str, cwd: Path, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )


def quick_compiler() -> str | None:
    """A clang that compiles the standard headers of this machine; None: what CMake takes."""
    headers = Path(__file__).parents[1] / "cpp" / "standard.hpp"
    for name in ("clang++-22", "clang++-21", "clang++-20"):
        if shutil.which(name) is not None:
            check = (name, "-std=c++20", "-fsyntax-only", "-x", "c++", str(headers))
            if run(*check, cwd=headers.parent).returncode == 0:
                return name
    return None


@dataclass
class Outcome:
    is_refused: bool  # by a static_assert
    text: str
    returncode: int = 0


class Build:
    """A build of the test programs of `root`, by ninja."""

    def __init__(self, root: Path, folder: Path, programs: list[str]) -> None:
        compiler = quick_compiler()
        folder = folder / (compiler or "c++")  # a build folder cannot change its compiler
        self.root, self.folder = root, folder
        options = (
            *("-DNF12_BUILD_TESTS=ON", "-DNF12_BUILD_TORCH=OFF", "-DNF12_GPU_TARGETS=none"),
            *("-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1", "-DNF12_HASTY_TESTS=ON"),
            *((f"-DCMAKE_CXX_COMPILER={compiler}",) if compiler else ()),
        )
        for command in (
            ("cmake", "-S", str(root), "-B", str(folder), "-G", "Ninja", *options),
            ("cmake", "--build", str(folder), "--target", *programs),
        ):
            done = run(*command, cwd=root, timeout=900)
            assert done.returncode == 0, done.stdout
        entries = json.loads((folder / "compile_commands.json").read_text())
        commands = [shlex.split(entry["command"]) for entry in entries]
        self.compile = {command[command.index("-o") + 1]: command for command in commands}
        self.dependencies = self._dependencies()
        self.link = {program: self._link_command(program) for program in programs}

    def _dependencies(self) -> dict[str, set[Path]]:
        """Of each object file, what it was compiled from."""
        found: dict[str, set[Path]] = {}
        current: set[Path] = set()
        for line in run("ninja", "-t", "deps", cwd=self.folder).stdout.splitlines():
            if line.startswith(" "):
                current.add(Path(os.path.normpath(self.folder / line.strip())))
            elif line:
                current = found.setdefault(line.split(":")[0], set())
        return found

    def _link_command(self, program: str) -> list[str]:
        listed = run("ninja", "-t", "commands", program, cwd=self.folder).stdout.splitlines()
        return [word for word in shlex.split(listed[-1]) if word not in (":", "&&")]

    def program(self, name: str) -> Path:
        command = self.link[name]
        return self.folder / command[command.index("-o") + 1]

    def with_file(self, program: str, file: str, text: str, folder: Path) -> Outcome:
        """Builds `program` into `folder` with `text` as the content of `file`."""
        replaced = folder / file
        replaced.parent.mkdir(parents=True)
        replaced.write_text(text)
        source = self.root / file
        link = list(self.link[program])
        stale = [
            word
            for word in link
            if source in self.dependencies.get(word, ())
            # Other programs than gemm's call nothing there; and of two copies of an inline function
            # the linker keeps the first, which is ours.
            and (program == "gemm_test" or "csrc/cpu/gemm/" not in word)
        ]
        assert stale, f"{program} does not depend on {file}"
        fresh = []
        for number, word in enumerate(stale):
            command = list(self.compile[word])
            fresh.append(str(folder / f"{number}.o"))
            command[command.index("-o") + 1] = fresh[-1]
            if command[-1] == str(source):
                command[-1] = str(replaced)
            command.insert(1, f"-I{folder}")
            done = run(*command, cwd=self.folder)
            if done.returncode != 0:
                return Outcome("static assertion failed" in done.stdout, done.stdout, 1)
        first = min(link.index(word) for word in stale)
        link = [word for word in link if word not in stale]
        link[first:first] = fresh
        link[link.index("-o") + 1] = str(folder / program)
        done = run(*link, cwd=self.folder)
        return Outcome(False, done.stdout, done.returncode)
