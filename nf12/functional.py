"""Functions on packed weights: pack, unpack, gemm, gather, and the choice of kernel."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from nf12.backend import GPU_BACKENDS, Backend, gpu_index, introspection, resolve_backend
from nf12.op_errors import translated
from nf12.packed_weight import META_BYTES, CastReport, PackedWeight, StaysDense
from nf12.packing import (
    SLICE_WEIGHTS,
    Operands,
    dtype_name,
    gather_spec,
    gemm_spec,
    linear_once_rounded,
    pack_spec,
    unpack_spec,
)

T = TypeVar("T")

BITS = 12
AUTO_KERNEL = "auto"
_ONLY_CUDA = ("stream", "cluster", "wide")  # of the GPU kernels
_CASTABLE = (torch.float16, torch.float32)


def check_bits(bits: int) -> None:
    """NF12 has one rate: ValueError for anything but the integer 12."""
    if isinstance(bits, bool) or not isinstance(bits, int) or bits != BITS:
        raise ValueError(
            f"nf12: bits is {bits!r}, must be {BITS}: sign and mantissa of BF16 take 8 and an "
            "exponent code 4; any other rate would be another format or lose bits"
        )


# ---- pack and unpack ----------------------------------------------------------------------------


def pack(
    weight: Tensor,
    *,
    bits: int = BITS,
    base: int | None = None,
    cast: bool = False,
    backend: Backend | str = "auto",
) -> PackedWeight | StaysDense:
    """Packs a weight [N, K] or a stack of experts [X, N, K], without loss, on its own device.

    `weight` is BF16; FP16 and FP32 are rounded to BF16 only with `cast=True`, and the result then
    carries `.cast` with the worst error. `base` 96..128 is the window's first exponent, by default
    the best. Returns `StaysDense` for a weight that would not shrink.

    TypeError for another dtype; ValueError for another rank, an empty weight, `bits` other than 12
    or a base that would lose bits.
    """
    check_bits(bits)
    if not isinstance(weight, Tensor):
        raise TypeError(f"nf12.pack: weight is a {type(weight).__name__}, expected a torch.Tensor")
    if weight.dim() not in (2, 3) or weight.numel() == 0:
        raise ValueError(
            f"nf12.pack: weight is {list(weight.shape)}, expected a non-empty [N, K] or [X, N, K]"
        )
    if weight.device.type == "meta":
        raise ValueError("nf12.pack: weight is on the meta device and has no values to pack")
    weight = weight.detach()
    report = None
    if weight.dtype != torch.bfloat16:
        weight, report = _cast(weight, cast)

    chosen = resolve_backend(backend, weight.device)
    requested = -1 if base is None else base
    if chosen is Backend.TORCH:
        payload, index, escapes, meta = pack_spec(weight, requested)
    else:
        payload, index, escapes, meta = _call(torch.ops.nf12.pack, weight, requested)
    _, n, k, base = meta.tolist()
    packed_bytes = payload.nbytes + index.nbytes + escapes.nbytes + META_BYTES
    dense_bytes = 2 * weight.numel()
    if packed_bytes >= dense_bytes:
        reason = (
            f"{' x '.join(map(str, weight.shape))} would take {packed_bytes} bytes in NF12, "
            f"{dense_bytes} in BF16"
        )
        return StaysDense(reason, packed_bytes, dense_bytes)
    return PackedWeight.trusted(payload, index, escapes, n, k, base, cast=report)


def _cast(weight: Tensor, allowed: bool) -> tuple[Tensor, CastReport]:
    problem = f"nf12.pack: weight has dtype {dtype_name(weight.dtype)}, expected bfloat16"
    if weight.dtype not in _CASTABLE:
        raise TypeError(problem)
    if not allowed:
        raise TypeError(f"{problem}; cast=True rounds it first, which is not lossless")
    rounded = weight.to(torch.bfloat16)
    max_abs = max_rel = 0.0
    sources, results = weight.flatten(0, -2), rounded.flatten(0, -2)
    rows = max(1, SLICE_WEIGHTS // weight.shape[-1])
    for start in range(0, len(sources), rows):
        exact = sources[start : start + rows].double()
        result = results[start : start + rows]
        same = (exact == result) | (exact.isnan() & result.isnan())
        error = torch.where(same, 0.0, (exact - result).abs())
        max_abs = max(max_abs, float(error.max()))
        max_rel = max(max_rel, float(torch.where(same, 0.0, error / exact.abs()).max()))
    return rounded, CastReport(weight.dtype, max_abs, max_rel)


def unpack(packed: PackedWeight, *, backend: Backend | str = "auto") -> Tensor:
    """The exact BF16 weight [N, K] or [X, N, K], bit for bit."""
    return unpack_operands(packed.operands, resolve_backend(backend, packed.device))


def unpack_operands(operands: Operands, backend: Backend) -> Tensor:
    """`unpack` on the operator's own arguments and a resolved backend."""
    if backend is Backend.TORCH:
        return unpack_spec(*operands)
    result: Tensor = _call(torch.ops.nf12.unpack, *operands)
    return result


# ---- gemm and gather ----------------------------------------------------------------------------


def gemm(
    x: Tensor,
    packed: PackedWeight,
    bias: Tensor | None = None,
    *,
    backend: Backend | str = "auto",
    kernel: str = AUTO_KERNEL,
) -> Tensor:
    """`y = x W^T + bias`: x BF16 [..., K], bias BF16 [N], y BF16 [..., N].

    Differentiable in x and bias; W is frozen. Inside autocast x is cast to BF16. `kernel` names one
    kernel of the backend (`nf12.kernels`) instead of the measured choice.

    TypeError for a wrong dtype, ValueError for shapes, devices or an unknown kernel.
    """
    chosen = resolve_backend(backend, x.device)
    if kernel == AUTO_KERNEL:
        return gemm_operands(x, packed.operands, bias, chosen)
    known = (AUTO_KERNEL, *kernels(chosen))
    if kernel not in known:
        names = ", ".join(known)
        raise ValueError(
            f"nf12.gemm: backend {chosen} has no kernel {kernel!r}, must be one of {names}"
        )
    with use_kernel(kernel):
        return gemm_operands(x, packed.operands, bias, chosen)


def gemm_operands(x: Tensor, operands: Operands, bias: Tensor | None, backend: Backend) -> Tensor:
    """`gemm` on the operators' own arguments and a resolved backend: what the modules call."""
    if backend is Backend.TORCH:
        device_type = x.device.type
        if device_type != "meta" and torch.is_autocast_enabled(device_type):
            x = x.to(torch.bfloat16)
            bias = None if bias is None else bias.to(torch.bfloat16)
        _check_gemm(x, operands, bias)
        result: Tensor = _TorchGemm.apply(  # type: ignore[no-untyped-call]
            x, bias, *operands
        )
        return result
    needs_grad = torch.is_grad_enabled() and (
        x.requires_grad or (bias is not None and bias.requires_grad)
    )
    # The twin without an Autograd key saves microseconds a call; autocast is a key of `gemm` alone.
    op: Callable[..., Tensor] = torch.ops.nf12.gemm
    if not needs_grad and x.dtype == torch.bfloat16:
        op = torch.ops.nf12._gemm
    if torch.compiler.is_compiling():
        result = op(x, *operands, bias)
        return result
    if needs_grad and x.dtype == torch.bfloat16:
        op = recorded_gemm()
    try:
        result = op(x, *operands, bias)
    except RuntimeError as error:
        raise gemm_error(error, x, operands, bias) from None
    return result


def gemm_error(
    error: RuntimeError, x: Tensor, operands: Operands, bias: Tensor | None
) -> Exception:
    """What callers of gemm expect for the operator's RuntimeError."""
    try:
        _check_gemm(x, operands, bias)
    except (TypeError, ValueError) as problem:
        return problem
    return translated(error)


@functools.cache
def direct_gemm(device: torch.device) -> Callable[..., Tensor] | None:
    """The operator without an Autograd key for tensors of `device`, None where backend torch runs
    them. It is what an OpOverload calls: those of torch.ops cost 0.5 us a call more."""
    if resolve_backend("auto", device) is Backend.TORCH:
        return None
    op: Callable[..., Tensor] = torch.ops.nf12._gemm.default._op
    return op


@functools.cache
def recorded_gemm() -> Callable[..., Tensor]:
    """The same operator, recorded for gradients by our own hand."""
    from nf12.ops import RecordedGemm  # loads libnf12.so

    op: Callable[..., Tensor] = RecordedGemm.apply
    return op


def gather(ids: Tensor, packed: PackedWeight, *, backend: Backend | str = "auto") -> Tensor:
    """Rows `ids` (int32 or int64, any shape) of a [N, K] weight: BF16 [*ids.shape, K], exact.

    An id outside 0..N-1 raises IndexError on a CPU and gives a row of NaN on a GPU.
    TypeError for ids of another dtype, ValueError for a stack of experts or another device.
    """
    return gather_operands(ids, packed.operands, resolve_backend(backend, ids.device))


def gather_operands(ids: Tensor, operands: Operands, backend: Backend) -> Tensor:
    """`gather` on the operator's own arguments and a resolved backend."""
    if backend is Backend.TORCH:
        _check_gather(ids, operands)
        return gather_spec(ids, *operands)
    if torch.compiler.is_compiling():
        result: Tensor = torch.ops.nf12.gather(ids, *operands)
        return result
    try:
        result = torch.ops.nf12.gather(ids, *operands)
    except RuntimeError as error:
        _check_gather(ids, operands)
        raise translated(error) from None
    return result


class _TorchGemm(torch.autograd.Function):
    """gemm of the torch backend. Saves the packed weight, never a dense one."""

    @staticmethod
    def forward(
        x: Tensor,
        bias: Tensor | None,
        payload: Tensor,
        index: Tensor,
        escapes: Tensor,
        out_features: int,
        in_features: int,
        base: int,
    ) -> Tensor:
        return gemm_spec(x, payload, index, escapes, out_features, in_features, base, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[2:5])
        ctx.sizes = inputs[5:]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx = db = None
        if ctx.needs_input_grad[0]:
            w = unpack_spec(*ctx.saved_tensors, *ctx.sizes)
            dx = linear_once_rounded(dy, w.t(), None)
        if ctx.needs_input_grad[1]:
            db = dy.float().flatten(0, -2).sum(0).to(dy.dtype) if dy.dim() > 1 else dy
        return dx, db, None, None, None, None, None, None


# ---- the choice of kernel -----------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """What `gemm` would run: a backend, the name of its kernel, and on a GPU the tokens of a block
    (0: buffered), the splits of K, and whether `nf12 tune` measured that on this machine."""

    backend: Backend
    kernel: str
    tokens: int = 0
    splits: int = 0
    tuned: bool = False


def kernels(backend: Backend | str) -> tuple[str, ...]:
    """Names of the gemm kernels of a backend: the levels of a CPU (least first, also those that
    this processor lacks), fused, stream, cluster and wide (cuda alone), matrix and buffered of a
    GPU, none of torch."""
    backend = Backend(backend)
    if backend is Backend.CPU:
        return tuple(introspection().cpu_levels())
    if backend not in GPU_BACKENDS:
        return ()
    names = introspection().gpu_kernels()
    left_out = () if backend is Backend.CUDA else _ONLY_CUDA
    return tuple(name for name in names if name not in left_out)


def select(m: int, n: int, k: int, device: torch.device | str = "cpu") -> Selection:
    """What `gemm` runs for x [m, k] and a weight [n, k] on `device`, overrides aside. Pure."""
    device = torch.device(device)
    backend = resolve_backend("auto", device)
    if backend is Backend.TORCH:
        return Selection(backend, "torch")
    if backend is Backend.CPU:
        return Selection(backend, introspection().select(m, n, k))
    return Selection(backend, **introspection().select_gpu(m, n, k, gpu_index(device.index)))


def kernel_or_choice(name: str) -> contextlib.AbstractContextManager[None]:
    """`use_kernel`, or for "auto" whatever the thread's choice is already."""
    return contextlib.nullcontext() if name == AUTO_KERNEL else use_kernel(name)


@contextlib.contextmanager
def use_kernel(name: str) -> Iterator[None]:
    """Makes `gemm` of this thread use the kernel `name` inside the block, over the measured choice.

    A CPU level is for CPU tensors, a GPU kernel for those on GPUs; the others go on as they were.
    ValueError for a kernel that is unknown or that this processor cannot run.
    """
    c = introspection()
    before = c.kernel_override()
    c.set_kernel_override(name)
    try:
        yield
    finally:
        c.set_kernel_override(before)


# ---- errors -------------------------------------------------------------------------------------


def _call(op: Callable[..., T], *arguments: Any) -> T:
    try:
        return op(*arguments)
    except RuntimeError as error:
        raise translated(error) from None


def _check_gemm(x: Tensor, operands: Operands, bias: Tensor | None) -> None:
    """The operator's rules on x and bias, as TypeError and ValueError."""
    payload, out_features, in_features = operands[0], operands[3], operands[4]
    _check_single("gemm", payload)
    for name, tensor in (("x", x), ("bias", bias)):
        if tensor is not None and tensor.dtype != torch.bfloat16:
            raise TypeError(
                f"nf12::gemm: {name} has dtype {dtype_name(tensor.dtype)}, expected bfloat16"
            )
        if tensor is not None:
            _check_device("gemm", name, tensor, payload)
    if x.dim() == 0:
        raise ValueError("nf12::gemm: x has 0 dimensions, expected at least 1")
    if x.shape[-1] != in_features:
        raise ValueError(
            f"nf12::gemm: x has {x.shape[-1]} columns, the packed weight has in_features "
            f"{in_features}"
        )
    if bias is not None and tuple(bias.shape) != (out_features,):
        raise ValueError(
            f"nf12::gemm: bias is {list(bias.shape)}, the packed weight has out_features "
            f"{out_features}"
        )


def _check_gather(ids: Tensor, operands: Operands) -> None:
    """The operator's rules on ids, as TypeError and ValueError."""
    _check_single("gather", operands[0])
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(
            f"nf12::gather: ids has dtype {dtype_name(ids.dtype)}, expected int32 or int64"
        )
    _check_device("gather", "ids", ids, operands[0])


def _check_single(op: str, payload: Tensor) -> None:
    if payload.dim() != 3:
        raise ValueError(f"nf12::{op}: payload has {payload.dim()} dimensions, expected 3")


def _check_device(op: str, name: str, tensor: Tensor, payload: Tensor) -> None:
    if tensor.device != payload.device:
        raise ValueError(
            f"nf12::{op}: {name} is on {tensor.device}, the packed weight is on {payload.device}"
        )
