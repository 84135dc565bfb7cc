"""One target's checks. They run in a process of their own: NF12_CPU_LEVEL is read once, and an
illegal instruction or a GPU fault is a result like any other."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

import nf12
from nf12.backend import GPU_BACKENDS
from nf12.functional import (
    AUTO_KERNEL,
    gather_operands,
    gemm_operands,
    kernel_or_choice,
    unpack_operands,
)
from nf12.packed_weight import check
from nf12.packing import FORMAT_VERSION, Operands, gather_spec, pack_spec
from nf12.selftest.cases import SEED, weights
from nf12.selftest.subnormals import probe
from nf12.validation import gemm_bound, gemm_reference

# The operator's words for a kernel that a build lacks, and for what one does not take.
LEFT_OUT = "is not built for this GPU"
NOT_TAKEN = ("takes at most", "rounds twice with a bias", "needs in_features", "needs rows of x")


@dataclass(frozen=True)
class Target:
    """Code that answers an operator: a backend on a device, and one kernel of its gemm."""

    backend: nf12.Backend
    device: str
    kernel: str = AUTO_KERNEL

    @property
    def name(self) -> str:
        on_cpu = self.backend is nf12.Backend.CPU
        return f"cpu {self.kernel}" if on_cpu else f"{self.device} {self.backend} {self.kernel}"

    @property
    def checks(self) -> tuple[str, ...]:
        """A level of the CPU is one of all operators, a GPU's kernel one of gemm alone."""
        whole = self.kernel == AUTO_KERNEL or self.backend is nf12.Backend.CPU
        return tuple(CHECKS) if whole else ("gemm", "subnormals")


@dataclass(frozen=True)
class Result:
    """One check of one target. `detail` says what was wrong, or how much was compared."""

    target: str
    check: str
    passed: bool
    detail: str
    seconds: float
    facts: dict[str, str] = field(default_factory=dict)


class Mismatch(Exception):
    """A kernel's answer is not the reference's."""


def check_target(target: Target) -> list[Result]:
    """Runs every check of a target in this process."""
    results = []
    for name in target.checks:
        begin = time.monotonic()
        facts: dict[str, str] = {}
        try:
            passed, detail = True, CHECKS[name](target, facts)
        except Exception as error:  # whatever goes wrong is the result
            passed = LEFT_OUT in str(error)
            detail = LEFT_OUT if passed else f"{type(error).__name__}: {error}"
        results.append(Result(target.name, name, passed, detail, time.monotonic() - begin, facts))
    return results


def print_target() -> None:
    """What a target's own process runs: its results as JSON on stdout."""
    backend, device, kernel = sys.argv[1:]
    # Sums of partial sums in BF16, as some dense kernels do, are no fault of ours.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    results = check_target(Target(nf12.Backend(backend), device, kernel))
    print(json.dumps([asdict(result) for result in results]))


def _check_pack(target: Target, facts: dict[str, str]) -> str:
    count = 0
    for name, weight in weights():
        ours = _pack(target, weight)
        for tensor, ours_part, spec_part in zip(
            ("payload", "index", "escapes", "meta"), ours, pack_spec(weight), strict=True
        ):
            _require_equal(f"{name}: {tensor}", ours_part.cpu(), spec_part)
        count += weight.numel()
    return f"{count} weights, bytes equal to the specification's"


def _check_unpack(target: Target, facts: dict[str, str]) -> str:
    count = 0
    for name, weight in weights():
        operands = _operands(target, weight)
        check(*operands, FORMAT_VERSION)
        _require_equal(name, _bits(unpack_operands(operands, target.backend)), _bits(weight))
        count += weight.numel()
    return f"{count} weights, all 65,536 patterns among them, bit for bit"


def _check_gather(target: Target, facts: dict[str, str]) -> str:
    count = 0
    for name, weight in weights():
        if weight.dim() == 2:
            operands = _operands(target, weight)
            ids = torch.arange(weight.shape[0]).flip(0)
            rows = _bits(gather_operands(ids.to(target.device), operands, target.backend))
            _require_equal(name, rows, _bits(weight.flip(0)))
            payload, index, escapes = (tensor.cpu() for tensor in operands[:3])
            spec = gather_spec(ids, payload, index, escapes, *operands[3:])
            _require_equal(f"{name}: spec", rows, _bits(spec))
            count += ids.numel()
    return f"{count} rows, bit for bit"


def _check_gemm(target: Target, facts: dict[str, str]) -> str:
    count = 0
    worst = 0.0
    for name, weight in weights():
        if weight.dim() != 2 or not bool(weight.isfinite().all()):
            continue
        operands = _operands(target, weight)
        n, k = weight.shape
        generator = torch.Generator().manual_seed(SEED)
        for m, with_bias in itertools.product(_tokens(target), (True, False)):
            x = torch.randn(m, k, generator=generator).bfloat16()
            bias = torch.randn(n, generator=generator).bfloat16() if with_bias else None
            try:
                y = _gemm(target, x, operands, bias)
            except RuntimeError as error:
                if any(words in str(error) for words in NOT_TAKEN):
                    continue
                raise
            reference, bound = _expected(target, x, weight, bias)
            ratio = (y.double() - reference).abs() / bound
            if not bool((ratio <= 1).all()):  # a NaN is a fault too
                at = divmod(int((~(ratio <= 1)).int().argmax()), n)
                raise Mismatch(
                    f"{name}, m={m}{', bias' * with_bias}: y{list(at)} is {y[at].item():.6g},"
                    f" {ratio[at].item():.3g} times the bound from the reference"
                )
            worst = max(worst, float(ratio.max()))
            count += y.numel()
    if count == 0:
        raise Mismatch("the kernel took none of the problems")
    return f"{count} outputs, worst error {worst:.2f} of the bound"


def _check_subnormals(target: Target, facts: dict[str, str]) -> str:
    def gemm(x: Tensor, weight: Tensor) -> Tensor:
        return _gemm(target, x, _operands(target, weight, base=112), None)

    facts |= probe(gemm)
    wrong = {case: fact for case, fact in facts.items() if fact not in ("kept", "flushed")}
    if wrong:
        raise Mismatch(f"neither kept nor flushed: {wrong}")
    return ", ".join(f"{case} {fact}" for case, fact in facts.items())


CHECKS: dict[str, Callable[[Target, dict[str, str]], str]] = {
    "pack": _check_pack,
    "unpack": _check_unpack,
    "gather": _check_gather,
    "gemm": _check_gemm,
    "subnormals": _check_subnormals,
}


def _tokens(target: Target) -> Sequence[int]:
    """On a GPU one for each compiled token count, and some beside a block's."""
    if target.backend in GPU_BACKENDS and target.kernel != "buffered":
        return (*range(1, 18), 24, 25, 32, 33, 48, 49, 64, 65, 128, 130)
    return (1, 2, 7, 16, 33)


def _expected(
    target: Target, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The exact result in float64, and how far y may be from it."""
    products, terms = gemm_reference(x, weight)
    if bias is None:
        return products, gemm_bound(products, terms, x.shape[1])
    reference = products + bias.double()
    bound = gemm_bound(reference, terms + bias.double().abs(), x.shape[1])
    if target.backend is nf12.Backend.TORCH and target.device != "cpu":
        # torch's own BF16 linear, which may round the product before it adds the bias.
        bound += gemm_bound(products, torch.zeros_like(products), 0)
    return reference, bound


def _gemm(target: Target, x: Tensor, operands: Operands, bias: Tensor | None) -> Tensor:
    """On the target's device with its kernel; the result on the CPU."""
    x = x.to(target.device)
    bias = None if bias is None else bias.to(target.device)
    if target.backend is nf12.Backend.TORCH:
        return gemm_operands(x, operands, bias, target.backend).cpu()
    with kernel_or_choice(target.kernel):
        result: Tensor = torch.ops.nf12.gemm(x, *operands, bias)
    return result.cpu()


def _pack(target: Target, weight: Tensor, base: int = -1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weight = weight.to(target.device)
    if target.backend is nf12.Backend.TORCH:
        return pack_spec(weight, base)
    packed: tuple[Tensor, Tensor, Tensor, Tensor] = torch.ops.nf12.pack(weight, base)
    return packed


def _operands(target: Target, weight: Tensor, base: int = -1) -> Operands:
    payload, index, escapes, meta = _pack(target, weight, base)
    _, n, k, base = meta.tolist()
    return payload, index, escapes, n, k, base


def _bits(tensor: Tensor) -> Tensor:
    return tensor.cpu().view(torch.int16)


def _require_equal(name: str, ours: Tensor, reference: Tensor) -> None:
    if ours.shape != reference.shape:
        raise Mismatch(f"{name}: shape {list(ours.shape)}, should be {list(reference.shape)}")
    differs = (ours != reference).reshape(-1)
    if bool(differs.any()):
        at = int(differs.int().argmax())
        values = ours.reshape(-1)[at].item(), reference.reshape(-1)[at].item()
        raise Mismatch(
            f"{name}: {int(differs.sum())} of {differs.numel()} differ, first at {at}:"
            f" {values[0]}, should be {values[1]}"
        )
