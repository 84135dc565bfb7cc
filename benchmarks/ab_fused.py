"""What a token count known at compile time is worth to the fused kernel, and what the 32 KiB of
shared memory at one token are.

    python benchmarks/ab_fused.py --machine-code build/ab.json   # where there is clang >= 20
    python scripts/prove_nvidia.py --build-only                  # where there is nvcc: the cubins
    python benchmarks/ab_fused.py --time build/ab.json           # where there is an NVIDIA card

Two pairs, one difference each (tests/nvidia/variants.cpp, never shipped):

    m known at run time   against   at compile time      one source, tests/nvidia/runtime_m.hpp
    M = 1, no plane       against   plane of 32 KiB      the shipped kernel

All add in the same order, so their results have equal bits, and those of the shipped kernel too.

The machine code is that of gfx1201, where this matters; the times are those of the card at hand,
and say nothing about RDNA4. Cold: consecutive launches read different copies of the weight, which
together exceed the L2 twice. Launches are replayed from CUDA graphs, both sides in turn, and
medians are shown. All results are held against float64.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import importlib.util
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CUBINS = ROOT / "build" / "nvidia" / "bin"
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT / "scripts"))

SHAPES = ((4096, 4096), (2048, 8192), (896, 4864), (4096, 14336))  # k x n
TOKENS = (1, 2, 4, 8, 15)
SOURCES = ("csrc/gemm/fused/instances/fused.cpp", "tests/nvidia/variants.cpp")
RUN_TIME, COMPILE_TIME = "nf12_test_run_time_m", "nf12_test_compile_time_m"
SHIPPED, NO_PLANE = "nf12_gemm_fused_m", "nf12_test_fused_m1_no_plane"
WAVES, BLOCK_ROWS = 8, 32  # of a workgroup
GRAPH_LAUNCHES, REPLAYS = 48, 25


# ---- machine code --------------------------------------------------------------------------------

# A work-group processor of RDNA4: four SIMDs, each with 1,536 registers a lane given out in groups
# of 24 and room for 16 waves; 128 KiB of LDS.
SIMDS, SIMD_REGISTERS, REGISTER_GROUP, SIMD_WAVES, LDS_BYTES = 4, 1536, 24, 16, 128 * 1024


def workgroups_per_wgp(vgprs: int, lds_bytes: int) -> int:
    """Workgroups of eight waves that share one work-group processor."""
    waves = min(SIMD_WAVES, SIMD_REGISTERS // (-(-vgprs // REGISTER_GROUP) * REGISTER_GROUP))
    return min(SIMDS * waves // WAVES, LDS_BYTES // lds_bytes)


def machine_code(sources: tuple[str, ...] = SOURCES) -> list[dict[str, Any]]:
    """Registers, scratch, LDS and indexed registers of every kernel, compiled for gfx1201."""
    from gfx12_code import disassemble, notes, run, tool

    rows = []
    clang = tool("clang")
    flags = "-x hip --offload-arch=gfx1201 --cuda-device-only --no-gpu-bundle-output -nogpulib"
    flags += f" -nogpuinc -O3 -std=c++20 -fuse-cuid=none -I{ROOT}"
    with tempfile.TemporaryDirectory() as folder:
        for source in sources:
            code_object = Path(folder) / "kernels.co"
            run(clang, *flags.split(), str(ROOT / source), "-o", str(code_object))
            _, fields = notes(code_object)
            code = disassemble(code_object)
            for kernel, numbers in fields.items():
                opcodes = Counter(i.opcode for i in code[kernel])
                vgprs, lds = numbers["vgpr_count"], numbers["group_segment_fixed_size"]
                row = {
                    "kernel": kernel,
                    "vgprs": vgprs,
                    "scratch_bytes": numbers["private_segment_fixed_size"],
                    "scratch_accesses": sum(
                        n for o, n in opcodes.items() if o.startswith("scratch")
                    ),
                    "movrel": sum(n for o, n in opcodes.items() if o.startswith("v_movrel")),
                    "lds_bytes": lds,
                    "workgroups_per_wgp": workgroups_per_wgp(vgprs, lds),
                }
                rows.append(row)
    return rows


def print_machine_code(rows: list[dict[str, Any]]) -> None:
    print("gfx1201 machine code\n")
    print(f"{'kernel':<30} {'VGPRs':>6} {'scratch B':>10} {'accesses':>9} {'v_movrel':>9} "
          f"{'LDS B':>7} {'workgroups a WGP':>17}")  # fmt: skip
    for row in sorted(rows, key=lambda row: (len(row["kernel"]), row["kernel"])):
        print(
            f"{row['kernel']:<30} {row['vgprs']:>6} {row['scratch_bytes']:>10} "
            f"{row['scratch_accesses']:>9} {row['movrel']:>9} {row['lds_bytes']:>7} "
            f"{row['workgroups_per_wgp']:>17}"
        )


# ---- time ----------------------------------------------------------------------------------------


class GemmParams(ctypes.Structure):
    """csrc/gemm/params.hpp, the members of its PackedView first."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("payload", "index", "escapes")),
        *((name, ctypes.c_int64) for name in ("payload_stride_bytes", "index_stride", "n", "k")),
        ("quads", ctypes.c_uint32),
        ("base", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("x", "bias", "y", "partials")),
        *((name, ctypes.c_int64) for name in ("x_stride", "y_stride")),
        *(
            (name, ctypes.c_int32)
            for name in ("m", "splits", "columns_per_split", "scalar_columns")
        ),
        ("scale", ctypes.c_float),
    ]


class Driver:
    """Kernels of the cubins, launched on torch's current stream."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._modules = [self._load(path) for path in sorted(CUBINS.glob("*.cubin"))]

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._cuda, name)(*arguments):
            raise RuntimeError(f"{name}: CUDA error {code}")

    def _load(self, path: Path) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        self._call("cuModuleLoad", ctypes.byref(module), str(path).encode())
        return module

    def kernel(self, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        for module in self._modules:
            find = self._cuda.cuModuleGetFunction
            if find(ctypes.byref(function), module, name.encode()) == 0:
                return function
        raise RuntimeError(f"{name} is in none of the cubins")

    def launch(self, kernel: ctypes.c_void_p, blocks: int, params: GemmParams) -> None:
        import torch

        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(params))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid, block = (blocks, 1, 1), (32 * WAVES, 1, 1)
        self._call("cuLaunchKernel", kernel, *grid, *block, 0, stream, arguments, None)


def packing() -> ModuleType:
    """nf12/packing.py on its own: the specification needs no built library."""
    spec = importlib.util.spec_from_file_location("nf12_packing", ROOT / "nf12" / "packing.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def make_weight(n: int, k: int) -> Any:
    """As bench_gemm.py: 3.3e-4 escapes in a tenth of the tiles."""
    import torch

    generator = torch.Generator("cuda").manual_seed(0)
    scale = 0.3 / k**0.5
    w = torch.randn(n, k, generator=generator, device="cuda").mul_(scale)
    least = torch.tensor(scale * 2.0**-9, device="cuda")
    w = torch.where(w.abs() < least, torch.copysign(least, w), w).bfloat16()
    tiles = torch.rand(-(-n // 16), -(-k // 64), generator=generator, device="cuda") < 0.1
    in_tiles = tiles.repeat_interleave(16, 0)[:n].repeat_interleave(64, 1)[:, :k]
    w[in_tiles & (torch.rand(n, k, generator=generator, device="cuda") < 3.3e-3)] = 0
    return w


class Side:
    """One contender: a kernel over rotating copies of the weight, as a CUDA graph."""

    def __init__(self, driver: Driver, name: str, copies: list[GemmParams], y: Any) -> None:
        import torch

        self.name, self.y = name, y
        self._params = [GemmParams.from_buffer_copy(params) for params in copies]
        for params in self._params:
            params.y = y.data_ptr()
        kernel = driver.kernel(name)
        blocks = -(-self._params[0].n // BLOCK_ROWS)
        driver.launch(kernel, blocks, self._params[0])
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for i in range(GRAPH_LAUNCHES):
                driver.launch(kernel, blocks, self._params[i % len(self._params)])

    def microseconds(self) -> float:
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / GRAPH_LAUNCHES


def violations(y: Any, x: Any, w: Any) -> int:
    """Elements outside ulp_bf16(ref) / 2 + (k / 16 + 1) 2^-23 sum |x w|."""
    reference = x.double() @ w.double().T
    terms = x.double().abs() @ w.double().abs().T
    exponent = reference.abs().clamp(min=2.0**-126).log2().floor()
    bound = (exponent - 8).exp2() + (x.shape[1] / 16 + 1) * 2.0**-23 * terms
    return int((~((y.double() - reference).abs() <= bound)).sum())


def time_shape(driver: Driver, spec: ModuleType, k: int, n: int) -> list[dict[str, Any]]:
    import torch

    w = make_weight(n, k)
    payload, index, escapes, meta = spec.pack_spec(w)
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    copies = max(2, -(-2 * l2_bytes // payload.nbytes))
    payloads = [payload.clone() for _ in range(copies)]
    rows = []
    for m in TOKENS:
        x = torch.randn(m, k, device="cuda").bfloat16()
        params = [
            GemmParams(
                payload=copy.data_ptr(),
                index=index.data_ptr(),
                escapes=escapes.data_ptr() or None,
                payload_stride_bytes=payload.stride(0) if payload.dim() == 3 else 0,
                index_stride=index.stride(0),
                n=n,
                k=k,
                quads=escapes.numel() // 4,
                base=int(meta[3]),
                x=x.data_ptr(),
                x_stride=k,
                y_stride=n,
                m=m,
                splits=1,
                columns_per_split=k // 64,
                scalar_columns=k // 64,
                scale=2.0 ** (int(meta[3]) - 112),
            )
            for copy in payloads
        ]

        def side(name: str, params: list[GemmParams] = params, m: int = m) -> Side:
            y = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
            return Side(driver, name, params, y)

        shipped = side(f"{SHIPPED}{m}")
        pairs = [(side(RUN_TIME), side(f"{COMPILE_TIME}{m}"))]
        if m == 1:
            pairs.append((side(NO_PLANE), shipped))
        for before, after in pairs:
            sides = (before, after, shipped)
            times = [[each.microseconds() for each in sides] for _ in range(REPLAYS)]
            medians = [statistics.median(column) for column in zip(*times, strict=True)]
            for each in sides:
                assert torch.equal(each.y.view(torch.int16), shipped.y.view(torch.int16)), each.name
            rows.append(
                {
                    "k": k,
                    "n": n,
                    "m": m,
                    "before": before.name,
                    "after": after.name,
                    "before_us": round(medians[0], 2),
                    "after_us": round(medians[1], 2),
                    "shipped_us": round(medians[2], 2),
                    "violations": violations(shipped.y, x, w),
                }
            )
    return rows


def print_times(rows: list[dict[str, Any]]) -> None:
    print(
        f"\n{'k x n':>12} {'m':>3} {'before':<28} {'us':>8} {'after':<28} {'us':>8} {'x':>6} "
        f"{'shipped us':>11}"
    )
    for row in rows:
        print(
            f"{row['k']:>6}x{row['n']:<5} {row['m']:>3} {row['before']:<28} "
            f"{row['before_us']:>8.2f} {row['after']:<28} {row['after_us']:>8.2f} "
            f"{row['before_us'] / row['after_us']:>6.2f} {row['shipped_us']:>11.2f}"
        )


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--machine-code", type=Path, metavar="FILE", help="compile, write it there")
    parser.add_argument("--time", type=Path, metavar="FILE", help="measure; FILE: from before")
    parser.add_argument("--output", type=Path, help="the result's path")
    options = parser.parse_args()
    if options.machine_code:
        rows = machine_code()
        print_machine_code(rows)
        options.machine_code.parent.mkdir(parents=True, exist_ok=True)
        options.machine_code.write_text(json.dumps(rows, indent=1) + "\n")
    if not options.time:
        return 0

    import torch

    code = json.loads(options.time.read_text())
    driver_version = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, check=True,
    ).stdout.split()[0]  # fmt: skip
    torch.zeros(1, device="cuda")
    driver, spec = Driver(), packing()
    rows = [row for k, n in SHAPES for row in time_shape(driver, spec, k, n)]
    print_machine_code(code)
    print_times(rows)
    device = torch.cuda.get_device_name()
    date = datetime.date.today().isoformat()
    report = {
        "device": device,
        "driver": driver_version,
        "torch": str(torch.__version__),
        "date": date,
        "mode": "cold",
        "rows": rows,
        "machine_code": {"target": "gfx1201", "rows": code},
    }
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower())
    path = options.output or RESULTS / f"ab-fused-{slug}-{date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(path)
    return int(any(row["violations"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
