"""The scalar-register hazard of gfx12, looked for in finished machine code.

Once a vector instruction has read a scalar register, a later read of it may miss a write that has
not been committed, and see the old value. `s_wait_alu` commits: sa_sdst(0) what the scalar unit
wrote, va_sdst(0) and va_vcc(0) what the vector unit wrote. A scalar memory load commits everything.
Compilers before LLVM 20 do not know the hazard and insert no waits: their code runs on an emulator
and may compute anything on a card.

The rules are those of LLVM's own mitigation, applied as a check: registers count as read from the
first vector read on, in pairs; states are joined over all paths.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from gfx12_code import Instruction

VCC = 106  # vcc_lo and vcc_hi are the registers 106 and 107
OPERAND = re.compile(r"\bs\[(\d+):(\d+)\]|\bs(\d+)\b|\b(vcc)(?:_lo|_hi)?\b")
CARRY_OUT = re.compile(r"v_(add|sub|subrev)_co|v_mad_co|v_div_scale")
# Scalar instructions whose first operand is read, or that have none.
NO_RESULT = re.compile(
    r"s_(cmp|bitcmp|branch|cbranch|wait|nop|delay|clause|barrier|sendmsg|endpgm|setreg|code_end)"
)


@dataclass(frozen=True)
class State:
    """Bit sets of register numbers (`read`: of pairs)."""

    read: int = 0  # ever read by a vector instruction
    scalar: int = 0  # written by the scalar unit, uncommitted
    vector: int = 0  # written by the vector unit, uncommitted
    vcc_scalar: bool = False
    vcc_vector: bool = False

    def joined(self, other: State) -> State:
        return State(
            self.read | other.read,
            self.scalar | other.scalar,
            self.vector | other.vector,
            self.vcc_scalar or other.vcc_scalar,
            self.vcc_vector or other.vcc_vector,
        )


@dataclass
class Operands:
    defs: set[int] = field(default_factory=set)
    uses: set[int] = field(default_factory=set)


def registers(text: str) -> set[int]:
    found: set[int] = set()
    for first, last, single, vcc in OPERAND.findall(text):
        if vcc:
            found.add(VCC)
        else:
            found.update(range(int(first or single), int(last or first or single) + 1))
    return found


def operands_of(instruction: Instruction) -> Operands:
    result = Operands()
    for part in instruction.text.split("::"):
        opcode, _, rest = part.strip().partition(" ")
        operands = [operand.strip() for operand in rest.split(",")]
        results = 0 if NO_RESULT.match(opcode) else 1 + bool(CARRY_OUT.match(opcode))
        for i, operand in enumerate(operands):
            (result.defs if i < results else result.uses).update(registers(operand))
        if opcode.startswith(("s_cbranch_vcc", "v_dual_cndmask")):
            result.uses.add(VCC)
    return result


def waited(state: State, text: str) -> State:
    if "sa_sdst(0)" in text:
        state = replace(state, scalar=0, vcc_scalar=False)
    if "va_sdst(0)" in text:
        state = replace(state, vector=0)
    if "va_vcc(0)" in text:
        state = replace(state, vcc_vector=False)
    return state


def after(state: State, instruction: Instruction) -> tuple[State, bool]:
    """The state behind an instruction, and whether it reads what may be old."""
    opcode = instruction.opcode
    if opcode == "s_wait_alu":
        return waited(state, instruction.text), False
    if opcode.startswith(("s_load", "s_buffer_load", "s_prefetch")):
        return State(read=state.read), False
    is_vector = opcode.startswith("v_")
    if not is_vector and not opcode.startswith("s_"):
        return state, False
    operands = operands_of(instruction)
    stale = False
    read, scalar, vector = state.read, state.scalar, state.vector
    vcc_scalar, vcc_vector = state.vcc_scalar, state.vcc_vector
    for register in operands.uses:
        pair = 1 << (register >> 1)
        if not read & pair:
            read |= pair if is_vector else 0
        elif register == VCC:
            if not is_vector and vcc_vector:
                vcc_scalar = vcc_vector = False
            stale |= vcc_scalar or vcc_vector
        else:
            vector = vector if is_vector else 0
            stale |= bool(scalar >> register & 1) or (is_vector and bool(vector >> register & 1))
    if stale:  # as if it had been waited for, so that one missing wait counts once
        scalar = vector = 0
        vcc_scalar = vcc_vector = False
    for register in operands.defs:
        if not read & 1 << (register >> 1):
            continue
        if register == VCC:
            vcc_scalar, vcc_vector = not is_vector, is_vector
        elif is_vector:
            vector |= 1 << register
        else:
            scalar |= 1 << register
    return State(read, scalar, vector, vcc_scalar, vcc_vector), stale


def through(state: State, block: list[Instruction]) -> tuple[State, list[Instruction]]:
    """The state behind a block, and the instructions in it that read what may be old."""
    stale = []
    for instruction in block:
        state, is_stale = after(state, instruction)
        if is_stale:
            stale.append(instruction)
    return state, stale


def unguarded_reads(code: list[Instruction]) -> list[Instruction]:
    """The instructions of a kernel that may read an old value, on any path."""
    index = {instruction.address: i for i, instruction in enumerate(code)}
    targets = {index[i.target] for i in code if i.target is not None}
    leaders = sorted({0} | targets | {i + 1 for i, x in enumerate(code) if x.target is not None})
    ends = dict(zip(leaders, [*leaders[1:], len(code)], strict=True))
    entry = {0: State()}
    work = [0]
    while work:
        leader = work.pop()
        state, _ = through(entry[leader], code[leader : ends[leader]])
        last = code[ends[leader] - 1]
        nexts = [] if last.opcode in ("s_branch", "s_endpgm") else [ends[leader]]
        if last.target is not None:
            nexts.append(index[last.target])
        for following in nexts:
            if following >= len(code):
                continue
            joined = state.joined(entry.get(following, State()))
            if following not in entry or joined != entry[following]:
                entry[following] = joined
                work.append(following)
    # Only now: the states of all paths are in, as they were when the compiler placed its waits.
    stale = (through(entry[leader], code[leader : ends[leader]])[1] for leader in sorted(entry))
    return [instruction for block in stale for instruction in block]
