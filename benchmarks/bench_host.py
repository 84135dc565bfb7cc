"""Host time of a call for one token: F.linear, nn.Linear, the operator and nf12.Linear.

    python benchmarks/bench_host.py                     # CPU, a weight too small to cost anything
    python benchmarks/bench_host.py --backend cuda      # writes benchmarks/results/host-*.json
    python benchmarks/bench_host.py --output -          # prints the table only

Microseconds until a call returns. On a GPU that is until its kernel is enqueued: nothing is waited
for within a batch of calls, and the kernel of one token ends before the host has the next ready, so
that no call waits for room in the queue either. Batches of the contenders take turns in one
process; medians are shown. The results of the last batch are held against float64.

    no_grad, inference     of torch; `op` is torch.ops.nf12.gemm
    grad                   grad mode on, and nothing asks for a gradient
    gradient               x asks for one, so that the call is recorded
    no rows                nf12.Linear without any: arguments, checks and allocation, but no kernel
    empty                  torch.empty of the result alone
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch
import torch.nn.functional as F
from bench_gemm import commit, result_path, write
from torch import Tensor, nn

import nf12
from nf12.machine import device_name, driver_version
from nf12.validation import gemm_bound, gemm_reference, make_weight

FEATURES = {"cpu": 64, "cuda": 4096}  # N = K
MODES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "grad": torch.enable_grad,
    "gradient": torch.enable_grad,
}
COLUMNS = ("F.linear", "nn.Linear", "op", "nf12.Linear", "no rows", "empty")
Call = Callable[[], Tensor]


def contenders(x: Tensor, dense: nn.Linear, module: nf12.Linear) -> dict[str, Call]:
    """The columns of the table, in its order."""
    weight, operands, op = dense.weight, module.operands(), torch.ops.nf12.gemm
    none, shape, dtype, device = x[:0], (1, len(weight)), x.dtype, x.device
    calls: tuple[Call, ...] = (
        lambda: F.linear(x, weight),
        lambda: dense(x),
        lambda: op(x, *operands),
        lambda: module(x),
        lambda: module(none),
        lambda: torch.empty(shape, dtype=dtype, device=device),
    )
    return dict(zip(COLUMNS, calls, strict=True))


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def batch_us(call: Call, calls: int, device: torch.device) -> tuple[float, Tensor]:
    """Microseconds a call, and the last result. Waits before and after, not between."""
    synchronise(device)
    begin = time.perf_counter_ns()
    for _ in range(calls):
        y = call()
    spent_ns = time.perf_counter_ns() - begin
    synchronise(device)
    return spent_ns / calls / 1e3, y


def count_violations(y: Tensor, x: Tensor, w: Tensor) -> int:
    reference, terms = gemm_reference(x, w)
    return int((~((y.double() - reference).abs() <= gemm_bound(reference, terms, len(w[0])))).sum())


def bench_mode(
    mode: str, dense: nn.Linear, module: nf12.Linear, calls: int, batches: int
) -> dict[str, object]:
    device, w = dense.weight.device, dense.weight.detach()
    x = torch.randn(1, w.shape[1], generator=torch.Generator().manual_seed(1)).bfloat16().to(device)
    x.requires_grad_(mode == "gradient")
    columns = contenders(x, dense, module)
    times: dict[str, list[float]] = {name: [] for name in columns}
    results: dict[str, Tensor] = {}
    with MODES[mode]():
        for call in columns.values():
            batch_us(call, 10, device)
        for _ in range(batches):
            for name, call in columns.items():
                spent_us, results[name] = batch_us(call, calls, device)
                times[name].append(spent_us)
    wrong = sum(
        count_violations(results[name].detach(), x.detach(), w) for name in ("op", "nf12.Linear")
    )
    row: dict[str, object] = {"mode": mode, "violations": wrong}
    row |= {f"{name}_us": round(statistics.median(spent), 2) for name, spent in times.items()}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--features", type=int, default=0, help="N and K of the weight")
    parser.add_argument("--calls", type=int, default=200, help="of a batch")
    parser.add_argument("--batches", type=int, default=25)
    parser.add_argument("--output", default="", help="a file, or - for none")
    options = parser.parse_args()

    torch.set_num_threads(1)
    device = torch.device(options.backend)
    features = options.features or FEATURES[options.backend]
    weight = make_weight(features, features, torch.Generator().manual_seed(0)).to(device)
    dense = nn.Linear(features, features, bias=False, device="meta")
    dense.weight = nn.Parameter(weight, False)
    module = nf12.Linear.from_linear(dense)

    print(f"{device_name(device)}, N = K = {features}, m = 1, microseconds a call")
    print(f"{'mode':>10}", *(f"{name:>11}" for name in COLUMNS))
    rows = []
    for mode in MODES:
        row = bench_mode(mode, dense, module, options.calls, options.batches)
        rows.append(row)
        print(f"{mode:>10}", *(f"{row[f'{name}_us']:>11.2f}" for name in COLUMNS), flush=True)
    date = datetime.date.today().isoformat()
    report = {
        "device": device_name(device),
        "driver": driver_version(device),
        "host": device_name(torch.device("cpu")),
        "torch": str(torch.__version__),
        "nf12": nf12.__version__,
        "date": date,
        "commit": commit(),
        "features": features,
        "calls": options.calls,
        "batches": options.batches,
        "rows": rows,
    }
    if options.output != "-":
        default = result_path("host-", device_name(device), "", date)
        write(report, Path(options.output) if options.output else default)
    if any(row["violations"] for row in rows):
        raise SystemExit("values outside the bounds: the times mean nothing")


if __name__ == "__main__":
    main()
