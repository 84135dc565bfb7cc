"""Code objects for gfx12 as data: kernels, their metadata, their instructions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    address: int
    size_bytes: int
    text: str
    target: int | None  # of a branch

    @property
    def opcode(self) -> str:
        return self.text.split(None, 1)[0]

    @property
    def is_weight_load(self) -> bool:
        return self.opcode.startswith(("global_load", "buffer_load")) and "TH_LOAD_NT" in self.text

    @property
    def is_work(self) -> bool:
        """What this kernel's loop is there for; each kind of kernel says."""
        return False

    @classmethod
    def of(cls, other: Instruction) -> Instruction:
        return cls(other.address, other.size_bytes, other.text, other.target)


def run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(f"{command[0]}: {result.stderr.strip()}", file=sys.stderr)
        sys.exit(2)
    return result.stdout


def tool(name: str) -> str:
    for candidate in (*(f"{name}-{version}" for version in range(22, 18, -1)), name):
        if shutil.which(candidate):
            return candidate
    print(f"{name} is not on PATH, with or without a version", file=sys.stderr)
    sys.exit(2)


def notes(code_object: Path) -> tuple[str, dict[str, dict[str, int]]]:
    """The target's name, and per kernel the numbers of its metadata."""
    text = run(tool("llvm-readelf"), "--notes", str(code_object))
    target = re.search(r"amdhsa\.target:\s+'?\S*?(gfx\w+)", text)
    kernels: dict[str, dict[str, int]] = {}
    for entry in re.split(r"\n  - (?=\.)", text)[1:]:
        # Two spaces more than `.args` entries: the kernel's own fields.
        fields = dict(re.findall(r"^ {4}\.(\w+):\s+(\S+)$", "    " + entry, re.MULTILINE))
        if "name" in fields:
            kernels[fields["name"]] = {k: int(v) for k, v in fields.items() if v.isdigit()}
    return (target.group(1) if target else "?"), kernels


def compiler_of(code_object: Path) -> str:
    """The compiler's own line: "Debian clang version 22.1.8 (1~deb12u1)"."""
    text = run(tool("llvm-readelf"), "-p", ".comment", str(code_object))
    found = re.search(r"\]\s+(.*clang version .*)", text)
    return found.group(1).strip() if found else "unknown"


INSTRUCTION = re.compile(
    r"\t(.*?)\s*// ([0-9A-F]+): ([0-9A-F]{8}(?: [0-9A-F]{8})*)(?: <\w+(?:\+0x(\w+))?>)?"
)


def disassemble(code_object: Path) -> dict[str, list[Instruction]]:
    kernels: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    start = 0
    for line in run(tool("llvm-objdump"), "-d", str(code_object)).splitlines():
        if header := re.match(r"([0-9a-f]+) <(\w+)>:", line):
            start = int(header.group(1), 16)
            current = kernels.setdefault(header.group(2), [])
        elif body := INSTRUCTION.match(line):
            text, address, encoding, offset = body.groups()
            is_branch = text.startswith(("s_branch", "s_cbranch"))
            target = start + int(offset or "0", 16) if is_branch else None
            size_bytes = 4 * len(encoding.split())
            current.append(Instruction(int(address, 16), size_bytes, text, target))
    return kernels
