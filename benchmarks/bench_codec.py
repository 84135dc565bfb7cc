"""Speed of pack, unpack, check and gather beside a streaming copy of the same bytes.

    python benchmarks/bench_codec.py                 # writes benchmarks/results/codec-*.json
    python benchmarks/bench_codec.py --output -      # prints the table only

GB/s counts the bytes of the BF16 weight, whatever the direction: a copy at 10 GB/s reads and writes
10 GB each second. `copy` writes memory that is there; `clone`, as pack, unpack and gather do, new
memory that the kernel has yet to map: on many machines page faults are most of its time.

Every result is compared bit for bit in the same run, before it is timed, and the contenders of a
row alternate in one process; medians are shown. The weights of consecutive calls differ and exceed
the last-level cache together.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch

import nf12

SHAPES = ((4096, 4096), (4096, 14336), (896, 4864))  # k x n
ROTATED_BYTES = 128 << 20  # of distinct BF16 weights: past the caches of the machines at hand
OPERATORS = torch.ops.nf12
Packed = tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]


def make_weight(n: int, k: int, escapes: str, seed: int) -> torch.Tensor:
    """A Gaussian weight [n, k] without escapes, plus the named kind of them."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(n, k, generator=generator, dtype=torch.float32).mul_(0.02)
    weight = weight.sign().mul_(weight.abs().clamp_(2.0**-15, 0.4)).to(torch.bfloat16)
    if escapes == "none":
        return weight
    if escapes == "noise":  # every tile raw
        bits = torch.randint(-(2**15), 2**15, (n, k), generator=generator, dtype=torch.int16)
        return bits.view(torch.bfloat16)
    if escapes == "usual":  # 3.3e-4 in all, in one tile of ten, as in converted models
        in_tiles = torch.rand((n + 15) // 16, (k + 63) // 64, generator=generator) < 0.1
        spread = in_tiles.repeat_interleave(16, 0)[:n].repeat_interleave(64, 1)[:, :k]
        hit = (torch.rand(n, k, generator=generator) < 3.3e-3) & spread
    else:  # "embedding": ten in every tile
        hit = torch.rand(n, k, generator=generator) < 1e-2
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


def device_name(backend: str) -> str:
    if backend == "cuda":
        return torch.cuda.get_device_name()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, torch.get_num_threads()])
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring for each row")
    parser.add_argument("--output", default="", help="a file, or - for none")
    options = parser.parse_args()

    cores = torch.get_num_threads()
    rows = []
    names = ("copy", "clone", "pack", "unpack", "check", "gather")
    print("k x n, escapes, threads".ljust(38), *(f"{name:>8}" for name in names), " GB/s of BF16")
    for k, n in SHAPES:
        for escapes in ("none", "usual", "embedding", "noise"):
            for threads in dict.fromkeys(options.threads):
                row = bench_row(k, n, escapes, threads, options.seconds)
                rows.append(row)
                label = f"{k} x {n}, {escapes}, {threads}".ljust(38)
                print(label, *(f"{row[f'{name}_gb_per_s']:8.2f}" for name in names), flush=True)
                if row["violations"]:
                    raise SystemExit(f"{label}: {row['violations']} wrong results")

    date = datetime.date.today().isoformat()
    device = device_name("cpu")
    report = {
        "device": device,
        "cores": cores,
        "torch": torch.__version__,
        "nf12": nf12.__version__,
        "date": date,
        "commit": commit(),
        "mode": "cold",
        "rows": rows,
    }
    if options.output == "-":
        return
    slug = "-".join(device.lower().replace("(r)", "").split())
    default = Path(__file__).parent / "results" / f"codec-{slug}-{date}.json"
    path = Path(options.output) if options.output else default
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
