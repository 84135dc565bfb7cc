"""Speed of pack, unpack, check and gather beside a copy of the same bytes.

    python benchmarks/bench_codec.py                 # writes benchmarks/results/codec-*.json
    python benchmarks/bench_codec.py --backend cuda  # the same of GPU tensors
    python benchmarks/bench_codec.py --output -      # prints the table only

GB/s counts the bytes of the BF16 weight, whatever the direction: a copy at 10 GB/s reads and writes
10 GB each second. On a CPU `copy` writes memory that is there; `clone`, as pack, unpack and gather
do, new memory that the kernel has yet to map: on many machines page faults are most of its time.

On a GPU `ceiling` is a copy_ that moves, read and written together, as many bytes as unpack does
(3.5 a weight and the side table); `of ceil` is its time over that of unpack. ceiling, unpack and
gather are graphs of calls between two events. pack and check wait for the GPU themselves, so theirs
is the host's time until all is done.

Every result is compared bit for bit in the same run, before it is timed (those of a GPU's pack with
the CPU's), and the contenders of a row alternate in one process; medians are shown. Consecutive
calls read different weights, on a GPU they write to different memory too, and all of them together
exceed the last-level cache, on a GPU twice.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench_gemm import commit, parse_shape, result_path, write

import nf12
from nf12.machine import device_name, driver_version
from nf12.timing import cache_bytes

SHAPES = ((4096, 4096), (4096, 14336), (896, 4864))  # k x n
KINDS = ("none", "usual", "embedding", "noise")  # of escapes, see make_weight
LEAST_VARIANTS = 8  # of a GPU's weights: what starts a graph is then little beside its calls
ROTATED_BYTES = 128 << 20  # of distinct BF16 weights: past the caches of the machines at hand
OPERATORS = torch.ops.nf12
Packed = tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]
Call = Callable[[int], torch.Tensor]  # on a variant; check returns nothing


def make_weight(
    n: int, k: int, escapes: str, seed: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """A Gaussian weight [n, k] without escapes, plus the named kind of them."""
    generator = torch.Generator(device).manual_seed(seed)
    weight = torch.randn(n, k, generator=generator, dtype=torch.float32, device=device).mul_(0.02)
    weight = weight.sign().mul_(weight.abs().clamp_(2.0**-15, 0.4)).to(torch.bfloat16)
    if escapes == "none":
        return weight
    if escapes == "noise":  # every tile raw
        bits = torch.randint(-(2**15), 2**15, (n, k), generator=generator, device=device)
        return bits.to(torch.int16).view(torch.bfloat16)
    if escapes == "usual":  # 3.3e-4 in all, in one tile of ten, as in converted models
        tiles = (n + 15) // 16, (k + 63) // 64
        in_tiles = torch.rand(tiles, generator=generator, device=device) < 0.1
        spread = in_tiles.repeat_interleave(16, 0)[:n].repeat_interleave(64, 1)[:, :k]
        hit = (torch.rand(n, k, generator=generator, device=device) < 3.3e-3) & spread
    else:  # "embedding": ten in every tile
        hit = torch.rand(n, k, generator=generator, device=device) < 1e-2
    weight[hit] = 0
    return weight


def pack(weight: torch.Tensor) -> Packed:
    payload, index, escapes, meta = OPERATORS.pack(weight)
    _, n, k, base = meta.tolist()
    return payload, index, escapes, n, k, base


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def alternate(
    contenders: dict[str, Callable[[int], object]], variants: int, seconds: float
) -> dict[str, float]:
    """Median microseconds of each contender, called in turn on variant 0, 1, 2, ..."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    deadline = time.perf_counter() + seconds
    turn = 0
    while turn < 3 or time.perf_counter() < deadline:
        for name, call in contenders.items():
            begin = time.perf_counter()
            call(turn % variants)
            times[name].append(time.perf_counter() - begin)
        turn += 1
    return {name: statistics.median(values) * 1e6 for name, values in times.items()}


def bench_row(k: int, n: int, escapes: str, threads: int, seconds: float) -> dict[str, object]:
    torch.set_num_threads(threads)
    weight_bytes = 2 * n * k
    variants = max(1, -(-ROTATED_BYTES // weight_bytes))
    weights = [make_weight(n, k, escapes, seed) for seed in range(min(variants, 3))]
    weights += [weights[i % 3].clone() for i in range(3, variants)]
    packed = [pack(weight) for weight in weights]
    violations = sum(
        not same_bits(OPERATORS.unpack(*p), w) for w, p in zip(weights, packed, strict=True)
    )
    ids = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    violations += not same_bits(OPERATORS.gather(ids, *packed[0]), weights[0][ids])
    for p in packed:
        OPERATORS.check(*p, 1)

    target = torch.empty_like(weights[0])
    medians = alternate(
        {
            "copy": lambda i: target.copy_(weights[i]),
            "clone": lambda i: weights[i].clone(),
            "pack": lambda i: OPERATORS.pack(weights[i]),
            "unpack": lambda i: OPERATORS.unpack(*packed[i]),
            "check": lambda i: OPERATORS.check(*packed[i], 1),
            "gather": lambda i: OPERATORS.gather(ids, *packed[i]),
        },
        variants,
        seconds,
    )
    payload, index, table = packed[0][:3]
    packed_bytes = payload.nbytes + index.nbytes + table.nbytes
    row: dict[str, object] = {
        "k": k,
        "n": n,
        "escapes": escapes,
        "threads": threads,
        "bits_a_weight": round(8 * packed_bytes / (n * k), 3),
        "violations": violations,
    }
    for name, microseconds in medians.items():
        row[f"{name}_us"] = round(microseconds, 1)
        row[f"{name}_gb_per_s"] = round(weight_bytes / microseconds / 1e3, 2)
        row[f"{name}_gb_per_s_per_core"] = round(weight_bytes / microseconds / 1e3 / threads, 2)
    return row


# ---- GPU tensors --------------------------------------------------------------------------------


class Runs:
    """A call on each variant in turn; on a GPU one graph of them, unless the host has a part."""

    def __init__(
        self, call: Call, variants: int, device: torch.device, *, waits: bool = False
    ) -> None:
        self.call, self.variants, self.device, self.graph = call, variants, device, None
        # Held, so that each call has memory of its own.
        self.results = [call(i) for i in range(variants)]
        if device.type == "cuda" and not waits:
            self.graph = torch.cuda.CUDAGraph()
            self.results.clear()
            with torch.cuda.graph(self.graph):
                self.results += [call(i) for i in range(variants)]

    def time_us(self) -> float:
        """Microseconds a call."""
        if self.graph is None:
            self._synchronise()
            begin_s = time.perf_counter()
            for i in range(self.variants):
                self.results[i] = self.call(i)
            self._synchronise()
            return (time.perf_counter() - begin_s) * 1e6 / self.variants
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        elapsed_ms: float = begin.elapsed_time(end)
        return elapsed_ms * 1e3 / self.variants

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def bench_gpu_row(
    k: int, n: int, escapes: str, seconds: float, device: torch.device
) -> dict[str, object]:
    weight_bytes = 2 * n * k
    weights = [make_weight(n, k, escapes, 0, device)]
    payload, index, table, *_ = first = pack(weights[0])
    packed_bytes = payload.nbytes + index.nbytes + table.nbytes
    variants = max(LEAST_VARIANTS, -(-2 * cache_bytes(device) // packed_bytes))
    weights += [make_weight(n, k, escapes, min(seed, 2), device) for seed in range(1, variants)]
    packed = [first, *(pack(weight) for weight in weights[1:])]

    on_cpu = OPERATORS.pack(weights[0].cpu())
    violations = sum(
        not torch.equal(a.cpu(), b) for a, b in zip(OPERATORS.pack(weights[0]), on_cpu, strict=True)
    )
    ids = torch.randperm(n, generator=torch.Generator().manual_seed(1)).to(device)
    violations += not same_bits(OPERATORS.gather(ids, *first), weights[0][ids])
    for p in packed:
        OPERATORS.check(*p, 1)

    moved_bytes = packed_bytes + weight_bytes
    # Multiples of 512 bytes: a copy of other sizes can be slower.
    half_bytes = -(-moved_bytes // 1024) * 512
    blobs = [torch.zeros(half_bytes, dtype=torch.uint8, device=device) for _ in packed]
    targets = [torch.empty_like(blob) for blob in blobs]
    contenders = {
        "ceiling": Runs(lambda i: targets[i].copy_(blobs[i]), variants, device),
        "unpack": Runs(lambda i: OPERATORS.unpack(*packed[i]), variants, device),
        "gather": Runs(lambda i: OPERATORS.gather(ids, *packed[i]), variants, device),
        "pack": Runs(lambda i: OPERATORS.pack(weights[i]), variants, device, waits=True),
        "check": Runs(lambda i: OPERATORS.check(*packed[i], 1), variants, device, waits=True),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    deadline = time.perf_counter() + seconds
    while len(times["ceiling"]) < 5 or time.perf_counter() < deadline:
        for name, runs in contenders.items():
            times[name].append(runs.time_us())
    violations += sum(
        not same_bits(result, weight)
        for result, weight in zip(contenders["unpack"].results, weights, strict=True)
    )
    row: dict[str, object] = {
        "k": k,
        "n": n,
        "escapes": escapes,
        "variants": variants,
        "bits_a_weight": round(8 * packed_bytes / (n * k), 3),
        "violations": violations,
    }
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, microseconds in medians.items():
        row[f"{name}_us"] = round(microseconds, 2)
        if name != "ceiling":
            row[f"{name}_gb_per_s"] = round(weight_bytes / microseconds / 1e3, 2)
    for name in ("ceiling", "unpack"):
        row[f"{name}_moved_gb_per_s"] = round(moved_bytes / medians[name] / 1e3, 3)
    row["unpack_of_ceiling"] = round(medians["ceiling"] / medians["unpack"], 3)
    return row


def bench_gpu(options: argparse.Namespace, device: torch.device) -> list[dict[str, object]]:
    columns = ("unpack_gb_per_s", "pack_gb_per_s", "check_gb_per_s", "gather_gb_per_s",
               "ceiling_moved_gb_per_s", "unpack_moved_gb_per_s", "unpack_of_ceiling")  # fmt: skip
    titles = ("unpack", "pack", "check", "gather", "ceiling", "unpack", "of ceil")
    print("k x n, escapes".ljust(30), *(f"{title:>8}" for title in titles))
    print("".ljust(30), f"{'GB/s of BF16':>35} {'GB/s moved':>17}")
    rows = []
    for k, n in options.shapes:
        for escapes in KINDS:
            row = bench_gpu_row(k, n, escapes, options.seconds, device)
            rows.append(row)
            label = f"{k} x {n}, {escapes}".ljust(30)
            print(label, *(f"{row[column]:8.2f}" for column in columns), flush=True)
            if row["violations"]:
                raise SystemExit(f"{label}: {row['violations']} wrong results")
    return rows


# ---- both ---------------------------------------------------------------------------------------


def bench_cpu(options: argparse.Namespace) -> list[dict[str, object]]:
    rows = []
    names = ("copy", "clone", "pack", "unpack", "check", "gather")
    print("k x n, escapes, threads".ljust(38), *(f"{name:>8}" for name in names), " GB/s of BF16")
    for k, n in options.shapes:
        for escapes in KINDS:
            for threads in dict.fromkeys(options.threads):
                row = bench_row(k, n, escapes, threads, options.seconds)
                rows.append(row)
                label = f"{k} x {n}, {escapes}, {threads}".ljust(38)
                print(label, *(f"{row[f'{name}_gb_per_s']:8.2f}" for name in names), flush=True)
                if row["violations"]:
                    raise SystemExit(f"{label}: {row['violations']} wrong results")
    return rows


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shapes", nargs="+", type=parse_shape, default=SHAPES, metavar="KxN")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, torch.get_num_threads()],
                        help="of the CPU")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=0.0,
                        help="of measuring for each row; 2 on a CPU, 0.2 on a GPU")  # fmt: skip
    parser.add_argument("--output", default="", help="a file, or - for none")
    options = parser.parse_args()
    options.seconds = options.seconds or {"cpu": 2.0, "cuda": 0.2}[options.backend]

    cores = torch.get_num_threads()
    device = torch.device(options.backend)
    rows = bench_cpu(options) if device.type == "cpu" else bench_gpu(options, device)
    date = datetime.date.today().isoformat()
    name = device_name(device)
    report = {
        "device": name,
        "driver": driver_version(device),
        "cores": cores,
        "torch": str(torch.__version__),
        "nf12": nf12.__version__,
        "date": date,
        "commit": commit(),
        "mode": "cold",
        "rows": rows,
    }
    if options.output == "-":
        return
    default = result_path("codec-", name, "", date)
    write(report, Path(options.output) if options.output else default)


if __name__ == "__main__":
    main()
