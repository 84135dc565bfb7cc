"""scripts/dependent_launch.py: the kernels that ship wait before they touch memory, and each way of
not doing so is seen, in listings and in what nvcc makes of kernels that have it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import code_objects
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import dependent_launch  # noqa: E402  (a script, found by the line above)

KNOWN = re.compile(r"K\((gemm_(?:stream|cluster|warpgroup|wide)\w*)\)")
LATER_GPUS = ["sm_100", "sm_120"]
HEADER = "\n\t.target\tsm_90a\n\n\t\tFunction : probe\n"


def do_without_tools(*names: str) -> None:
    for name in names:
        if shutil.which(name) is None:
            code_objects.do_without(f"{name} is not on PATH")


def test_what_ships_waits_before_it_touches_memory() -> None:
    do_without_tools("cuobjdump", "nvdisasm")
    kernels = [
        kernel
        for path in code_objects.files("fatbin")
        for kernel in dependent_launch.kernels_of(path)
    ]
    listed = (ROOT / "csrc" / "runtime" / "kernels.hpp").read_text()
    assert {f"nf12_{name}" for name in KNOWN.findall(listed)} == {k.name for k in kernels}
    assert [fault for kernel in kernels for fault in kernel.faults()] == []


def test_so_does_what_later_gpus_make_of_it() -> None:
    do_without_tools("cuobjdump", "nvdisasm", "ptxas")
    paths = [path for path in code_objects.files("fatbin") if "gemm" in path.name]
    kernels = [k for path in paths for k in dependent_launch.kernels_of_ptx(path, LATER_GPUS)]
    assert {kernel.arch for kernel in kernels} == set(LATER_GPUS)
    assert [fault for kernel in kernels for fault in kernel.faults()] == []


# ---- listings -----------------------------------------------------------------------------------


def faults(*code: str) -> list[str]:
    lines = (f"        /*{16 * i:04x}*/    {text} ;    /* 0x0 */\n" for i, text in enumerate(code))
    (kernel,) = dependent_launch.kernels_in(HEADER + "".join(lines))
    return list(kernel.faults())


HARMLESS = [
    "S2R R0, SR_TID.X", "LDC.64 R2, c[0x0][0x210]", "IMAD R1, R0, c[0x0][0x218], RZ",
    "@!P0 CCTL.E.PF2 [R2]", "UBLKPF [UR4], UR6", "UTMACCTL.PF [UR4]", "STS [R4], R5",
    "SYNCS.EXCH.64 URZ, [UR4], UR6",
]  # fmt: skip


def test_what_may_stand_before_the_wait() -> None:
    assert faults(*HARMLESS, "PREEXIT", "ACQBULK", "LDG.E R0, desc[UR4][R2.64]", "EXIT") == []


@pytest.mark.parametrize(
    "access",
    [
        "LDG.E R0, desc[UR4][R2.64]", "@P1 STG.E.U16 desc[UR4][R2.64], R0", "LD.E R0, [R2]",
        "ST.E [R2], R0", "RED.E.ADD [R2], R0", "ATOMG.E.ADD PT, R0, [R2], R1",
        "LDGSTS.E.BYPASS.128 [R4], [R2.64]", "UBLKCP.S.G [UR4], [UR6], UR8",
        "UTMALDG.2D [UR4], [UR6]", "CCTL.IVALL.E [R2]", "UTMACCTL.IV [UR4]",
        "WHATEVER.NEW R0, [R2]",
    ],
)  # fmt: skip
def test_an_access_before_the_wait(access: str) -> None:
    assert any("touches memory" in fault for fault in faults(access, "ACQBULK", "EXIT"))
    assert faults("ACQBULK", access, "EXIT") == []


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (["@P0 EXIT", "ACQBULK", "EXIT"], "ends before the wait: 0x0 @P0 EXIT"),
        (["@P0 BRA 0x20", "ACQBULK", "EXIT"], "ends before the wait: 0x20 EXIT"),
        (["BRA.DIV UR4, 0x20", "ACQBULK", "EXIT"], "ends before the wait: 0x20 EXIT"),
        (["@P0 ACQBULK", "EXIT"], "ends before the wait: 0x10 EXIT"),
        (["BRA 0x20", "EXIT", "STG.E [R2], R0", "ACQBULK", "EXIT"], "touches memory"),
        (["CALL.REL.NOINC 0x30", "ACQBULK", "EXIT"], "jumps out of sight before the wait"),
        (["BRX R2 -0x10", "ACQBULK", "EXIT"], "jumps out of sight before the wait"),
        (["@P0 BRA `(.L_x_1)", "ACQBULK", "EXIT"], "jumps out of sight before the wait"),
        (["BSSY B0, 0x30", "BSYNC B0", "ACQBULK", "EXIT"], "ends before the wait: 0x30 EXIT"),
        (["ACQBULK", "LDG.E.128.CONSTANT R0, [R2.64]", "EXIT"], "past the coherent caches"),
        (["PREEXIT", "EXIT"], "never waits for its predecessor"),
    ],
    ids=[
        "early exit", "way around", "divergent way", "wait under a predicate", "after a jump",
        "call", "indirect", "label", "join past the wait", "nc", "no wait",
    ],
)  # fmt: skip
def test_other_faults(code: list[str], fault: str) -> None:
    found = faults(*code)
    assert len(found) == 1 and fault in found[0], found


def test_a_jump_past_harmful_code_is_followed() -> None:
    assert faults("BRA 0x20", "EXIT", "ACQBULK", "EXIT") == []
    loop = ["@P0 BRA 0x0", "ACQBULK", "BRA 0x30", "EXIT"]
    assert faults(*loop) == []


def test_a_barrier_register_may_serve_twice() -> None:
    """Threads join right after their BSYNC, not where a later BSSY of the same register leads."""
    before = ["BSSY B0, 0x20", "BSYNC B0", "ACQBULK"]
    assert faults(*before, "BSSY B0, 0x60", "STG.E [R2], R0", "BSYNC B0", "EXIT") == []


# ---- compiled counter-examples ------------------------------------------------------------------

WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
PROBES = {
    "good": f"""asm volatile("prefetch.global.L2 [%0];" :: "l"(in + threadIdx.x));
                {WAIT} out[threadIdx.x] = in[threadIdx.x];""",
    "load": f"float v = *(volatile float*)(in + threadIdx.x); {WAIT} out[threadIdx.x] = v;",
    "store": f"out[threadIdx.x] = 1; {WAIT} out[threadIdx.x] += in[threadIdx.x];",
    "exit": f"if (threadIdx.x >= m) return; {WAIT} out[threadIdx.x] = in[threadIdx.x];",
    "branch": f"if (m > 3) {{ {WAIT} }} out[threadIdx.x] = in[threadIdx.x];",
    "nc": f"{WAIT} out[threadIdx.x] = __ldg(in + threadIdx.x);",
}
FOUND = {
    "load": "touches memory before the wait", "store": "touches memory before the wait",
    "exit": "ends before the wait", "branch": "touches memory before the wait",
    "nc": "loads past the coherent caches",
}  # fmt: skip


def test_faults_that_nvcc_compiles_are_refused(tmp_path: Path) -> None:
    do_without_tools("nvcc", "cuobjdump", "nvdisasm")
    source, cubin = tmp_path / "probe.cu", tmp_path / "probe.cubin"
    head = 'extern "C" __global__ void probe_{}(float* out, const float* in, int m) {{ {} }}\n'
    source.write_text("".join(head.format(name, body) for name, body in PROBES.items()))
    command = ["nvcc", "-arch=sm_90a", "-cubin", "-O3", str(source), "-o", str(cubin)]
    subprocess.run(command, check=True)
    kernels = {kernel.name: list(kernel.faults()) for kernel in dependent_launch.kernels_of(cubin)}
    assert kernels.keys() == {f"probe_{name}" for name in PROBES} and kernels["probe_good"] == []
    for name, fault in FOUND.items():
        found = kernels[f"probe_{name}"]
        assert any(fault in text for text in found), (name, found)
    script = str(ROOT / "scripts" / "dependent_launch.py")
    done = subprocess.run([script, str(cubin)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "probe_exit: ends before the wait" in done.stdout
