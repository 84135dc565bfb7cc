"""One decode step of a Llama-3-8B-shaped stack: tokens a second with nn.Linear and nf12.Linear.

    python benchmarks/bench_decode.py                    # writes benchmarks/results/decode-*.json
    python benchmarks/bench_decode.py --compile          # torch.compile(mode="reduce-overhead") too
    python benchmarks/bench_decode.py --backend cpu --layers 2 --hidden 256 --vocab 1000

32 layers (q, k, v, o, gate, up and down projections; F.rms_norm; attention over a cache of 512
tokens, to which the step writes its own) and the head, with random weights that escape as those of
trained models do; no rotary embedding and no sampling. On a GPU each side is one graph, and they
take turns; compiled they take turns call by call. `rest` is the step without its linear layers:
what no weight format can make faster.

Values, of the last timed step: logits against the same stack in float64, where nf12 may be no
further off than 1.5 times what BF16 is; and weights that unpack to the dense ones bit for bit.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from bench_gemm import commit, result_path, write
from torch import Tensor, nn

import nf12
from nf12 import bench, machine
from nf12.timing import Rotation, rotate
from nf12.validation import device_of

HEADS, KV_HEADS = 32, 8
LINEARS = ("q", "k", "v", "o", "gate", "up", "down")
MOST_ERROR = 1.5  # of nf12, in errors of BF16
EPSILON = 1e-5


@dataclass(frozen=True)
class Sizes:
    """Llama-3-8B's with hidden 4096; smaller ones keep its proportions."""

    layers: int
    hidden: int
    vocab: int
    cached: int  # tokens
    batch: int  # the largest

    @property
    def head_dim(self) -> int:
        return self.hidden // HEADS

    def features(self, linear: str) -> tuple[int, int]:
        """in, out."""
        kv, wide = KV_HEADS * self.head_dim, self.hidden * 7 // 2
        return {
            "k": (self.hidden, kv),
            "v": (self.hidden, kv),
            "gate": (self.hidden, wide),
            "up": (self.hidden, wide),
            "down": (wide, self.hidden),
            "head": (self.hidden, self.vocab),
        }.get(linear, (self.hidden, self.hidden))


Factory = Callable[[nn.Module], nn.Module]


class Layer(nn.Module):
    """A decoder layer for one new token a sequence, with its cache."""

    def __init__(self, sizes: Sizes, linears: dict[str, nn.Module], norm: Tensor, cache: Tensor):
        super().__init__()
        self.sizes = sizes
        self.linears = nn.ModuleDict(linears)
        self.register_buffer("norm", norm)
        self.register_buffer("cache", cache)  # [keys or values, batch, head, token, feature]

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.normed(x))
        return x + self.gated(self.normed(x))

    def normed(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.sizes.hidden,), self.norm, EPSILON)

    def attention(self, x: Tensor) -> Tensor:
        batch, width = x.shape[0], self.sizes.head_dim
        q = self.linears["q"](x).view(batch, HEADS, 1, width)
        keys, values = self.cache[0, :batch], self.cache[1, :batch]
        keys[:, :, -1] = self.linears["k"](x).view(batch, KV_HEADS, width)
        values[:, :, -1] = self.linears["v"](x).view(batch, KV_HEADS, width)
        y = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        return self.linears["o"](y.reshape(batch, HEADS * width))

    def gated(self, x: Tensor) -> Tensor:
        return self.linears["down"](F.silu(self.linears["gate"](x)) * self.linears["up"](x))

    def with_linears(self, make: Factory) -> Layer:
        """The same layer and cache with other linears."""
        linears = {name: make(linear) for name, linear in self.linears.items()}
        return Layer(self.sizes, linears, self.norm, self.cache)

    def in_float64(self) -> Layer:
        linears: dict[str, nn.Module] = {n: Exact(linear) for n, linear in self.linears.items()}
        return Layer(self.sizes, linears, self.norm.double(), self.cache.double())


class Stack(nn.Module):
    """All layers and the head: the step. The last norm has no scale."""

    def __init__(self, layers: Sequence[Layer], head: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(F.rms_norm(x, (x.shape[-1],), None, EPSILON))

    def with_linears(self, make: Factory) -> Stack:
        return Stack([layer.with_linears(make) for layer in self.layers], make(self.head))

    def exact_logits(self, x: Tensor) -> Tensor:
        """In float64, layer by layer."""
        y = x.double()
        for layer in self.layers:
            y = layer.in_float64()(y)
        return Exact(self.head)(F.rms_norm(y, (y.shape[-1],), None, EPSILON))


class Exact(nn.Module):
    """A linear in float64."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = [linear]  # no submodule

    def forward(self, x: Tensor) -> Tensor:
        weight = self.linear[0].weight
        parts = [x @ rows.double().T for rows in weight.split(8192)]
        return torch.cat(parts, -1)


class Absent(nn.Module):
    """In place of a linear: its result is there already."""

    def __init__(self, linear: nn.Module, batch: int) -> None:
        super().__init__()
        weight = linear.weight
        self.register_buffer("y", weight.new_ones(batch, weight.shape[0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.y[: x.shape[0]]


def dense_stack(sizes: Sizes, device: torch.device) -> Stack:
    seeds = itertools.count()

    def linear(name: str) -> nn.Module:
        k, n = sizes.features(name)
        module = nn.Linear(k, n, bias=False, device="meta", dtype=torch.bfloat16)
        generator = torch.Generator(device).manual_seed(next(seeds))
        rate, share = bench.escape_pattern(bench.USUAL_ESCAPES)
        weight = bench.make_escaping_weight(n, k, generator, rate, share)
        module.weight = nn.Parameter(weight, requires_grad=False)
        return module

    def layer() -> Layer:
        generator = torch.Generator(device).manual_seed(next(seeds))
        shape = (2, sizes.batch, KV_HEADS, sizes.cached, sizes.head_dim)
        cache = torch.randn(shape, generator=generator, device=device).bfloat16()
        norm = torch.ones(sizes.hidden, device=device, dtype=torch.bfloat16)
        return Layer(sizes, {name: linear(name) for name in LINEARS}, norm, cache)

    return Stack([layer() for _ in range(sizes.layers)], linear("head"))


def linears_of(stack: Stack) -> Iterator[nn.Module]:
    for layer in stack.layers:
        yield from layer.linears.values()
    yield stack.head


def differing_weights(dense: Stack, packed: Stack) -> int:
    """Linears of the first and last layer and the head that do not unpack to the dense weight."""
    pairs = list(zip(linears_of(dense), linears_of(packed), strict=True))
    chosen = pairs[: len(LINEARS)] + pairs[-1 - len(LINEARS) :]
    bits = [(a.weight.view(torch.int16), b.weight.view(torch.int16)) for a, b in chosen]
    return sum(not torch.equal(a, b) for a, b in bits)


def time_steps(
    stacks: dict[str, Stack], x: Tensor, options: argparse.Namespace, compiled: bool
) -> dict[str, Rotation]:
    """Of each stack a step in a graph of its own, or as torch.compile runs it."""

    def step(stack: Stack) -> Callable[[int], Tensor]:
        if not compiled:
            return lambda copy: stack(x)
        torch._dynamo.config.recompile_limit = 64
        run = torch.compile(stack, mode="reduce-overhead", fullgraph=True, dynamic=False)

        def call(copy: int) -> Tensor:
            torch.compiler.cudagraph_mark_step_begin()
            return run(x).clone()  # the next call of any of them may write there

        for _ in range(3):  # compiles, warms up, records
            call(0)
        return call

    calls = {name: step(stack) for name, stack in stacks.items() if not compiled or name != "rest"}
    if x.device.type == "cuda" and torch.version.hip is None and not compiled:
        calls["plain"] = bench.plain(calls["nf12"])
    times = rotate(
        list(calls.values()),
        1,
        x.device,
        calls_per_turn=4 if compiled else 1,
        turns=options.turns,
        capturable=not compiled,
    )
    return dict(zip(calls, times, strict=True))


def bench_batch(
    stacks: dict[str, Stack], batch: int, options: argparse.Namespace, compiled: bool
) -> dict[str, Any]:
    dense = stacks["bf16"]
    first = next(linears_of(dense)).weight
    generator = torch.Generator(first.device).manual_seed(batch)
    shape = (batch, first.shape[1])
    x = torch.randn(shape, generator=generator, device=first.device).bfloat16()
    times = time_steps(stacks, x, options, compiled)
    exact = dense.exact_logits(x)
    error = {
        name: float((times[name].result.double() - exact).square().mean().sqrt())
        for name in ("bf16", "nf12")
    }
    us = {name: times[name].us for name in times}
    rest = {"rest_share": round(us["rest"] / us["bf16"], 4)} if "rest" in us else {}
    return {
        "batch": batch,
        "way": "compiled" if compiled else "graph" if times["nf12"].is_graph else "calls",
        **{f"{name}_us": round(value, 1) for name, value in us.items()},
        "bf16_tokens_per_s": round(batch / us["bf16"] * 1e6, 1),
        "nf12_tokens_per_s": round(batch / us["nf12"] * 1e6, 1),
        "ratio": round(us["bf16"] / us["nf12"], 4),
        **rest,
        "bf16_rms_error": error["bf16"],
        "nf12_rms_error": error["nf12"],
        "rms_logit": float(exact.square().mean().sqrt()),
        "passed": error["nf12"] <= MOST_ERROR * error["bf16"],
    }


def format_row(row: dict[str, Any]) -> str:
    more = f", plain {row['bf16_us'] / row['plain_us']:.3f}" if "plain_us" in row else ""
    if "rest_us" in row:
        more += f"; without linears {row['rest_us']:.0f} us, {row['rest_share']:.1%} of BF16's step"
    return (
        f"batch {row['batch']}, {row['way']}: BF16 {row['bf16_tokens_per_s']:.1f} tokens/s, "
        f"nf12 {row['nf12_tokens_per_s']:.1f} tokens/s, ratio {row['ratio']:.3f}{more}; "
        f"error {row['nf12_rms_error'] / row['rms_logit']:.2e}, BF16's "
        f"{row['bf16_rms_error'] / row['rms_logit']:.2e}"
    )


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--backend", choices=["auto", "cuda", "hip", "cpu"], default="auto")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096, help="a multiple of 32")
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--cached", type=int, default=512, help="tokens in the cache")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--turns", type=int, default=21, help="steps of each side")
    parser.add_argument("--compile", action="store_true", help="also through torch.compile")
    parser.add_argument("--output", default="", help="a file, or - for none")
    return parser.parse_args(arguments)


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    device = device_of(options.backend)
    try:
        backend = nf12.resolve_backend(options.backend, device)
    except nf12.BackendUnavailable as error:
        raise SystemExit(str(error)) from None
    report = machine.describe(device, backend, cold=True)
    print(f"{report['device']}, reads {report['read_gb_per_s']:.1f} GB/s")
    sizes = Sizes(options.layers, options.hidden, options.vocab, options.cached, max(options.batch))
    dense = dense_stack(sizes, device)
    stacks = {
        "bf16": dense,
        "nf12": dense.with_linears(nf12.Linear.from_linear),
        "rest": dense.with_linears(lambda linear: Absent(linear, sizes.batch)),
    }
    dense_bytes = sum(linear.weight.nbytes for linear in linears_of(dense))
    packed_bytes = sum(linear.packed().nbytes for linear in linears_of(stacks["nf12"]))
    print(f"weights: {dense_bytes} bytes, {packed_bytes} packed, {packed_bytes / dense_bytes:.4f}")
    rows = []
    for compiled in (False, True) if options.compile else (False,):
        for batch in options.batch:
            rows.append(bench_batch(stacks, batch, options, compiled))
            print(format_row(rows[-1]), flush=True)
    differing = differing_weights(dense, stacks["nf12"])
    print(f"weights that unpack to other bits: {differing}")
    if options.output != "-":
        report |= {
            "commit": commit(),
            **{name: getattr(sizes, name) for name in ("layers", "hidden", "vocab", "cached")},
            "dense_bytes": dense_bytes,
            "packed_bytes": packed_bytes,
            "differing_weights": differing,
            "rows": rows,
        }
        default = result_path("decode-", report["device"], "", report["date"])
        write(report, Path(options.output) if options.output else default)
    if differing or not all(row["passed"] for row in rows):
        raise SystemExit("values outside the bounds: the times mean nothing")


if __name__ == "__main__":
    main()
