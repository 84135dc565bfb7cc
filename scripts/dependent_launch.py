#!/usr/bin/env python3
"""That NVIDIA kernels launched before the one ahead has ended leave its memory alone until then.

    scripts/dependent_launch.py build/gpu/sm              every fatbin or cubin of a folder
    scripts/dependent_launch.py gemm_stream.fatbin --ptx sm_100 sm_120

In the machine code of every kernel that waits for its predecessor (ACQBULK: griddepcontrol.wait) or
lets its successor start (PREEXIT: griddepcontrol.launch_dependents), on every path from its entry:

    before ACQBULK   no access to memory but shared and local, constants, and prefetches to the L2;
                     no EXIT, no call, no indirect jump, which may hide either
    anywhere         no load past the coherent caches (ld.global.nc: LDG with .CONSTANT): the wait
                     does not order those, and ptxas was seen to move one across it

Anything that names an address and is not known to be harmless counts as an access. An ACQBULK under
a predicate is none. --ptx: the PTX that ships for later GPUs too, as ptxas makes code of it.

Needs cuobjdump and nvdisasm on PATH, with --ptx ptxas as well.
Exit code 0: all hold; 1: one does not, each fault is named; 2: no tools or no such kernels.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

WAIT, START = "ACQBULK", "PREEXIT"
# Shared and local memory, barriers in shared memory, constants.
PRIVATE = {"LDS", "STS", "LDSM", "STSM", "ATOMS", "SYNCS", "LDL", "STL", "LDC", "LDCU", "ULDC"}
# UTMACCTL.PF: of a tensor map, which lies among the kernel's own arguments.
PREFETCH = re.compile(r"CCTL\.(\w+\.)*PF2?\b|UBLKPF\b|UTMAPF\b|UTMACCTL\.PF\b")
UNCACHED = re.compile(r"LD\w*\.(\w+\.)*(CONSTANT|NC)\b")
HIDDEN = {"CALL", "RET", "BRX", "JMX", "BRXU", "JMXU", "RPCMOV", "RTT"}
JUMPS = {"BRA", "JMP"}

LINE = re.compile(r"^\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+(?P<text>[^;]+?)\s*;")
FUNCTION = re.compile(r"^\s+Function : (\S+)", re.MULTILINE)
ARCH = re.compile(r"^\s+\.target\s+(\S+)", re.MULTILINE)
CONSTANT = re.compile(r"\bcx?\[[^\]]*\]\[[^\]]*\]")


@dataclass(frozen=True)
class Instruction:
    address: int
    guard: str  # "@!P0", "" for none
    opcode: str  # "CCTL.E.PF2"
    operands: str

    @classmethod
    def of(cls, address: str, text: str) -> Instruction:
        guard, rest = re.fullmatch(r"(@!?U?P\w+ )?\s*(.*)", text).groups()  # type: ignore[union-attr]
        opcode, _, operands = rest.partition(" ")
        return cls(int(address, 16), (guard or "").strip(), opcode, operands.strip())

    def __str__(self) -> str:
        return f"{self.address:#x} {self.guard} {self.opcode} {self.operands}".replace("  ", " ")

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def is_wait(self) -> bool:
        return self.name == WAIT and not self.guard

    @property
    def fault(self) -> str | None:
        """What forbids it before the wait."""
        if self.name == "EXIT":
            return "ends"
        if self.name in HIDDEN:
            return "jumps out of sight"
        names_address = "[" in CONSTANT.sub("", self.operands)
        if names_address and self.name not in PRIVATE and not PREFETCH.match(self.opcode):
            return "touches memory"
        return None


@dataclass(frozen=True)
class Kernel:
    name: str
    arch: str
    code: list[Instruction]

    def has(self, name: str) -> bool:
        return any(instruction.name == name for instruction in self.code)

    def unwaited(self) -> list[Instruction]:
        """What can run before the wait has, the wait itself left out."""
        place = {instruction.address: i for i, instruction in enumerate(self.code)}
        joins = self.joins_elsewhere()
        seen: set[int] = set()
        open_places = [0] if self.code else []
        while open_places:
            i = open_places.pop()
            if i in seen or i >= len(self.code) or self.code[i].is_wait:
                continue
            seen.add(i)
            instruction = self.code[i]
            goes_on = instruction.name not in JUMPS or not is_certain(instruction)
            if goes_on and (instruction.name != "EXIT" or instruction.guard):
                open_places.append(i + 1)
            destinations: list[int] = []
            if instruction.name in JUMPS:
                destinations = [target(instruction)]
            elif instruction.name == "BSYNC":
                destinations = joins.get(instruction.operands, [])
            open_places += [place.get(destination, len(self.code)) for destination in destinations]
        return [self.code[i] for i in sorted(seen)]

    def joins_elsewhere(self) -> dict[str, list[int]]:
        """By barrier register, where threads may join other than right after their BSYNC: that is
        what BSSY names in all code seen so far."""
        joins: dict[str, list[int]] = {}
        before = {later.address: i for i, later in pairwise(self.code)}
        for instruction in self.code:
            if instruction.name == "BSSY":
                register, there = instruction.operands.partition(",")[0], target(instruction)
                last = before.get(there)
                if last is None or last.name != "BSYNC" or last.operands != register:
                    joins.setdefault(register, []).append(there)
        return joins

    def faults(self) -> Iterator[str]:
        where = f"{self.arch} {self.name}"
        if not self.has(WAIT):
            yield f"{where}: lets its successor start and never waits for its predecessor"
            return
        known = {instruction.address for instruction in self.code}
        for instruction in self.unwaited():
            fault = instruction.fault
            if instruction.name in JUMPS and target(instruction) not in known:
                fault = "jumps out of sight"
            if fault:
                yield f"{where}: {fault} before the wait: {instruction}"
        for instruction in self.code:
            if UNCACHED.match(instruction.opcode):
                yield f"{where}: loads past the coherent caches: {instruction}"


def target(instruction: Instruction) -> int:
    """Where it leads; -1, which is nowhere, if that is not a number."""
    found: list[str] = re.findall(r"\b0x[0-9a-f]+\b", instruction.operands)
    return int(found[-1], 16) if found else -1


def is_certain(jump: Instruction) -> bool:
    """Whether a jump is always taken: no guard, no predicate or other operand beside its target."""
    return not jump.guard and re.fullmatch(r"0x[0-9a-f]+", jump.operands) is not None


def run(*command: str, cwd: Path | None = None) -> str:
    if shutil.which(command[0]) is None:
        print(f"dependent_launch.py: {command[0]} is not on PATH", file=sys.stderr)
        sys.exit(2)
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode != 0:
        print(f"{' '.join(command)}: {done.stderr.strip()}", file=sys.stderr)
        sys.exit(2)
    return done.stdout


def kernels_of(path: Path) -> list[Kernel]:
    """The kernels of a fatbin or cubin that know dependent launch, once for each GPU."""
    return kernels_in(run("cuobjdump", "-sass", str(path)))


def kernels_in(listing: str) -> list[Kernel]:
    kernels = []
    for part in re.split(r"^(?=\s+\.target)", listing, flags=re.MULTILINE):
        arch = ARCH.match(part)
        for body in re.split(r"^(?=\s+Function : )", part, flags=re.MULTILINE):
            name = FUNCTION.search(body)
            if arch and name and (WAIT in body or START in body):
                lines = (LINE.match(line) for line in body.splitlines())
                code = [Instruction.of(line["address"], line["text"]) for line in lines if line]
                kernels.append(Kernel(name[1], arch[1], code))
    return kernels


def kernels_of_ptx(path: Path, archs: list[str]) -> list[Kernel]:
    """The same of the PTX in a fatbin, compiled for each of `archs`."""
    kernels: list[Kernel] = []
    with tempfile.TemporaryDirectory() as folder:
        run("cuobjdump", "-xptx", "all", str(path.resolve()), cwd=Path(folder))
        for source in Path(folder).glob("*.ptx"):
            if "griddepcontrol" not in source.read_text():
                continue
            for arch in archs:
                cubin = source.with_suffix(f".{arch}.cubin")
                run("ptxas", f"-arch={arch}", str(source), "-o", str(cubin))
                kernels += kernels_of(cubin)
    return kernels


def files_of(paths: list[Path]) -> list[Path]:
    return [
        file
        for path in paths
        for file in (sorted(path.rglob("*.fatbin")) if path.is_dir() else [path])
    ]


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path, help="fatbins, cubins, folders of fatbins")
    parser.add_argument("--ptx", nargs="*", default=[], metavar="ARCH", help="sm_100 sm_120")
    arguments = parser.parse_args()
    kernels: list[Kernel] = []
    for path in files_of(arguments.paths):
        kernels += kernels_of(path)
        if arguments.ptx:
            kernels += kernels_of_ptx(path, arguments.ptx)
    if not kernels:
        print("dependent_launch.py: no kernel that waits or lets another start", file=sys.stderr)
        return 2
    faults = [fault for kernel in kernels for fault in kernel.faults()]
    for kernel in kernels:
        before = kernel.unwaited()
        prefetches = sum(bool(PREFETCH.match(i.opcode)) for i in before)
        print(f"{kernel.arch:8} {kernel.name:28} {len(kernel.code):5} instructions, before the "
              f"wait {len(before)}, of them prefetches {prefetches}")  # fmt: skip
    print("\n".join(faults) if faults else f"{len(kernels)} kernels wait before they touch memory")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
