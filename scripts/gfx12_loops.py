"""Loops of a kernel: which way a round takes, and what it costs."""

from __future__ import annotations

import re
import tempfile

from gfx12_code import Instruction, run, tool

# Cycles that a wave's read keeps the LDS busy: 32 lanes at 128 bytes a cycle.
LDS_READ_CYCLES = {"ds_load_b32": 1, "ds_load_b64": 2, "ds_load_b96": 3, "ds_load_b128": 4}


def loops_of(code: list[Instruction]) -> list[tuple[int, int]]:
    """Indices of the first and last instruction of every loop."""
    index = {instruction.address: i for i, instruction in enumerate(code)}
    loops: dict[int, int] = {}
    for last, instruction in enumerate(code):
        if instruction.target is not None and instruction.target <= instruction.address:
            loops[index[instruction.target]] = last
    return list(loops.items())


def steady_path(code: list[Instruction], first: int, last: int) -> list[Instruction]:
    """The instructions of one round over clean tiles: of the ways from the loop's head back to it,
    those with the most work, and of these the shortest."""
    index = {instruction.address: i for i, instruction in enumerate(code)}
    best: dict[int, tuple[int, int]] = {}  # work from here on, minus the instructions it takes
    step: dict[int, int] = {}
    for i in range(last, first - 1, -1):
        instruction = code[i]
        nexts = [] if instruction.opcode == "s_branch" else [i + 1]
        if instruction.target is not None:
            nexts.append(index[instruction.target])
        for following in nexts:
            if following != first and not i < following <= last:
                continue  # out of the loop, or round an inner one
            if following != first and following not in best:
                continue
            work, cost = (0, 0) if following == first else best[following]
            work += instruction.is_work + instruction.is_weight_load
            if i not in best or (work, cost - 1) > best[i]:
                best[i], step[i] = (work, cost - 1), following
    path = [code[first]]
    i = step[first]
    while i != first:
        path.append(code[i])
        i = step[i]
    return path


def waited_count(instruction: Instruction) -> int | None:
    """How many loads may still be on their way after a wait for loads."""
    wait = re.match(r"s_wait_loadcnt(?:_dscnt)? (0x\w+|\d+)", instruction.text)
    return int(wait.group(1), 0) & 0x3F if wait else None


def throughput(path: list[Instruction], target: str) -> float:
    """llvm-mca's Block RThroughput of the path, in cycles of one SIMD."""
    text = "\n".join(i.text for i in path if i.target is None)
    with tempfile.NamedTemporaryFile("w", suffix=".s") as file:
        file.write(text + "\n")
        file.flush()
        report = run(
            tool("llvm-mca"),
            "-mtriple=amdgcn",
            f"-mcpu={target}",
            "-iterations=1",
            "-instruction-info=0",
            "-resource-pressure=0",
            file.name,
        )
    found = re.search(r"Block RThroughput: ([\d.]+)", report)
    return float(found.group(1)) if found else float("nan")
