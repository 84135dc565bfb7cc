"""A model of the gemm kernels on an R9700. No card has run them here: nothing in it is a
measurement of this library.

    python scripts/dump_isa.py build/gpu --json isa.json
    python benchmarks/model_rdna4.py isa.json

For each kernel, shape and m two figures that bracket what such a launch can take:

    bound        launch + the longest of: bytes, vector work, LDS         all of it overlaps
    no overlap   launch + bytes + vector work                             nothing does

bytes: the packed weight, cold at the rate of DRAM, warm at that of the last-level cache if it fits
in there. Vector work: the vector and matrix operations of a tile that the machine code of the main
loop shows, over all compute units, stretched where the blocks do not share out evenly. A launch
that splits k ends with a second one. The same model of the reference implementation stands beside
its published measurements, so that one sees how much it explains.

What it cannot see: latencies and the ramp at the start (half of a small shape), streams that evict
each other's lines, scalar instructions and their loads of x, clocks under load. It ranks kernels by
the work they do; it does not predict microseconds.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# R9700 (gfx1201). The last two are read off the reference's figures: a launch is about what
# 896x4864 at one token leaves beside its bytes, and dense BF16 4096x4096, warm, takes 24.5 us.
COMPUTE_UNITS, PROCESSORS = 64, 32  # a work-group processor is two compute units
SIMDS = 2  # of a compute unit; each takes one vector operation of a wave a cycle
CLOCK_HZ = 2.9e9
DRAM_BYTES_PER_S = 610e9
MATRIX_FLOPS = 191e12
CACHE_BYTES = 64 << 20
LAUNCH_US = 2.5
CACHE_BYTES_PER_S = 1.5e12

TILE_ROWS, TILE_COLUMNS, TILE_BYTES = 16, 64, 1536
LANE_WEIGHTS = TILE_ROWS * TILE_COLUMNS // 32
SHAPES = (  # k x n
    *((4096, 4096), (2048, 8192), (896, 4864), (4096, 14336)),
    *((4096, 28672), (25600, 5120), (8192, 8192), (11008, 4096)),
)
TOKENS = (1, 2, 4, 8, 12, 15, 16)

# The reference implementation on an R9700, microseconds, after its token count became a template
# parameter; its authors' figures, weights warm.
REFERENCE_US = {
    (4096, 4096, 1): 20.45,
    (2048, 8192, 1): 18.49,
    (896, 4864, 1): 8.08,
    (4096, 4096, 8): 24.15,
    (2048, 8192, 8): 23.87,
    (896, 4864, 8): 11.57,
    (4096, 14336, 8): 149.18,
    (25600, 5120, 8): 323.03,
}


@dataclass(frozen=True)
class Kernel:
    """What the model knows of one compiled kernel."""

    name: str
    tokens: int  # of a block
    block_rows: int  # of W
    operations_per_tile: float  # vector operations of a wave
    lds_cycles_per_tile: float
    splits_k_from: int  # tile columns that a split has at least
    matrix: bool = False  # multiplies by matrix operations, which come on top


@dataclass(frozen=True)
class Estimate:
    bytes_us: float
    vector_us: float
    lds_us: float
    launches_us: float

    @property
    def bound_us(self) -> float:
        return self.launches_us + max(self.bytes_us, self.vector_us, self.lds_us)

    @property
    def no_overlap_us(self) -> float:
        return self.launches_us + self.bytes_us + self.vector_us


def splits_of(kernel: Kernel, k: int, n: int, m: int) -> int:
    """As fused_splits and matrix_splits with two blocks wanted on each compute unit."""
    blocks = math.ceil(n / kernel.block_rows) * math.ceil(m / kernel.tokens)
    most = math.ceil(k / TILE_COLUMNS) // kernel.splits_k_from
    return max(1, min(2 * COMPUTE_UNITS // blocks, most))


def packed_bytes(k: int, n: int) -> int:
    """Of a weight [n, k] with its index."""
    return math.ceil(n / TILE_ROWS) * math.ceil(k / TILE_COLUMNS) * (TILE_BYTES + 4)


def fits_cache(k: int, n: int) -> bool:
    return packed_bytes(k, n) <= CACHE_BYTES


def imbalance(blocks: int) -> float:
    """Blocks of the fullest work-group processor over their mean."""
    return math.ceil(blocks / PROCESSORS) * PROCESSORS / blocks


def cycles_per_tile(kernel: Kernel) -> float:
    """Of one compute unit. Matrix operations keep the SIMD from others meanwhile."""
    cycles = kernel.operations_per_tile / SIMDS
    if kernel.matrix:
        flops = 2 * TILE_ROWS * TILE_COLUMNS * kernel.tokens
        cycles += flops / MATRIX_FLOPS * CLOCK_HZ * COMPUTE_UNITS
    return cycles


def estimate(kernel: Kernel, k: int, n: int, m: int, warm: bool = False) -> Estimate:
    tiles = math.ceil(n / TILE_ROWS) * math.ceil(k / TILE_COLUMNS)
    token_blocks = math.ceil(m / kernel.tokens)
    splits = splits_of(kernel, k, n, m)
    blocks = math.ceil(n / kernel.block_rows) * token_blocks * splits
    tile_us = 1e6 * tiles * token_blocks * imbalance(blocks) / (COMPUTE_UNITS * CLOCK_HZ)
    # Partials are written and read again, by a launch of their own.
    partial_bytes = 8 * splits * m * n if splits > 1 else 0
    rate = CACHE_BYTES_PER_S if warm and fits_cache(k, n) else DRAM_BYTES_PER_S
    return Estimate(
        bytes_us=1e6 * (packed_bytes(k, n) / rate + partial_bytes / CACHE_BYTES_PER_S),
        vector_us=tile_us * cycles_per_tile(kernel),
        lds_us=tile_us * kernel.lds_cycles_per_tile,
        launches_us=LAUNCH_US * (2 if splits > 1 else 1),
    )


def reference_kernel(m: int) -> Kernel:
    """Its published design: a wave a tile, 16 dot2 a token, x from LDS by four 16-byte reads a
    token; 2.5 vector operations to decode a weight are an assumption."""
    decode, dots, reads = 2.5 * LANE_WEIGHTS, 16 * m, 4 * m
    return Kernel(
        name="reference",
        tokens=m,
        block_rows=TILE_ROWS,
        operations_per_tile=decode + dots,
        lds_cycles_per_tile=4 * reads,
        splits_k_from=1 << 30,
    )


def kernels_of(rows: Iterable[dict[str, Any]]) -> dict[str, Kernel]:
    """The gfx1201 gemm kernels of scripts/dump_isa.py's rows, by name."""
    found = {}
    for row in rows:
        name = str(row["kernel"])
        match = re.search(r"_(fused_m|matrix_t)(\d+)$", name)
        if row["target"] != "gfx1201" or match is None:
            continue
        is_matrix, tokens = match[1] == "matrix_t", int(match[2])
        if is_matrix:
            operations = float(row["valu_per_weight"]) * LANE_WEIGHTS
        else:
            operations = float(row["decode_ops_per_weight"]) * LANE_WEIGHTS
            operations += float(row["dots_per_tile_token"]) * tokens
        found[name] = Kernel(
            name=name,
            tokens=tokens,
            block_rows=128 if is_matrix else 32,
            operations_per_tile=operations,
            lds_cycles_per_tile=float(row["lds_cycles_per_tile"]),
            splits_k_from=4 if is_matrix else 16,
            matrix=is_matrix,
        )
    return found


def compare(
    kernels: dict[str, Kernel], k: int, n: int, m: int, warm: bool = False
) -> tuple[Estimate, Estimate]:
    """The fused kernel for m tokens and the matrix kernel with blocks of 16."""
    fused = estimate(kernels[f"nf12_gemm_fused_m{m}"], k, n, m, warm)
    return fused, estimate(kernels["nf12_gemm_matrix_t16"], k, n, m, warm)


def print_reference() -> None:
    print("The reference implementation: model beside its published R9700 figures, warm, us\n")
    print(
        f"{'k x n':>12} {'m':>3} {'bound':>7} {'no overlap':>11} {'published':>10} {'/ bound':>8}"
    )
    for (k, n, m), published in REFERENCE_US.items():
        modelled = estimate(reference_kernel(m), k, n, m, warm=True)
        print(
            f"{f'{k}x{n}':>12} {m:>3} {modelled.bound_us:>7.1f} {modelled.no_overlap_us:>11.1f} "
            f"{published:>10.2f} {published / modelled.bound_us:>8.2f}"
        )


def print_kernels(kernels: dict[str, Kernel], warm: bool) -> None:
    print(
        f"\nOur kernels, modelled, {'warm' if warm else 'cold'}, us: fused | matrix, 16 a block\n"
    )
    print(
        f"{'k x n':>12} {'m':>3} {'bytes':>7} {'vector work':>16} {'bound':>16} {'no overlap':>16}"
        "  less work"
    )
    for k, n in SHAPES:
        if warm and not fits_cache(k, n):
            continue
        for m in TOKENS:
            fused, matrix = compare(kernels, k, n, m, warm)
            pairs = (
                (fused.vector_us, matrix.vector_us),
                (fused.bound_us, matrix.bound_us),
                (fused.no_overlap_us, matrix.no_overlap_us),
            )
            cells = " ".join(f"{ours:>7.1f} |{theirs:>6.1f} " for ours, theirs in pairs)
            less = "fused" if fused.no_overlap_us <= matrix.no_overlap_us else "matrix"
            print(f"{f'{k}x{n}':>12} {m:>3} {fused.bytes_us:>7.1f} {cells}  {less}")


def print_against_reference(kernels: dict[str, Kernel]) -> None:
    print("\nm = 8, where the reference was under parity with dense BF16; warm, us\n")
    columns = f"{'vector work':>12} {'LDS':>6} {'bound':>7} {'no overlap':>11}"
    print(f"{'k x n':>12} {'kernel':>10} {columns}")
    for k, n in ((4096, 4096), (2048, 8192), (896, 4864)):
        fused, matrix = compare(kernels, k, n, 8, warm=True)
        theirs = estimate(reference_kernel(8), k, n, 8, warm=True)
        for name, modelled in (("reference", theirs), ("fused", fused), ("matrix", matrix)):
            print(
                f"{f'{k}x{n}':>12} {name:>10} {modelled.vector_us:>12.1f} {modelled.lds_us:>6.1f} "
                f"{modelled.bound_us:>7.1f} {modelled.no_overlap_us:>11.1f}"
            )


def main() -> None:
    assert __doc__ is not None
    sections = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(description=sections[0])
    parser.add_argument("isa", type=Path, help="rows of scripts/dump_isa.py --json")
    options = parser.parse_args()
    print(sections[0] + "\n")
    print_reference()
    kernels = kernels_of(json.loads(options.isa.read_text()))
    for warm in (False, True):
        print_kernels(kernels, warm)
    print_against_reference(kernels)
    print("\n" + sections[-1])


if __name__ == "__main__":
    main()
