"""`torch.ops.nf12.*` in traced code: fake kernels, autograd and autocast.

The operators and their checks are C++ (csrc/torch). What is repeated here, with the same texts, is
what tracing needs: which arguments are refused and what shape a result has. A packed weight is six
arguments, payload, index, escapes, out_features, in_features, base, as in docs/format.md.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.library import get_ctx, register_autocast, register_autograd, register_fake

from nf12 import _library as _library  # the operators exist from here on

TILE_ROWS, TILE_COLUMNS, TILE_BYTES = 16, 64, 1536
MIN_BASE, MAX_BASE = 96, 128
MAX_QUADS = 1 << 24
MAX_FEATURES = 2**31 - 1


F = TypeVar("F", bound=Callable[..., Any])


def fake(operator: str) -> Callable[[F], F]:
    """`register_fake`, typed."""
    decorator: Callable[[F], F] = register_fake(operator)
    return decorator


def _fail(op: str, text: str) -> NoReturn:
    raise RuntimeError(f"nf12::{op}: {text}")


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(shape: Sequence[int]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"


def _check_dtype(op: str, name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        _fail(op, f"{name} has dtype {_dtype(tensor.dtype)}, expected {_dtype(dtype)}")


def _check_device(op: str, name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        _fail(op, f"{name} is on {tensor.device}, the packed weight is on {device}")


def _check_range(op: str, name: str, value: int, least: int, most: int) -> None:
    if value < least or value > most:
        _fail(op, f"{name} is {value}, expected {least} .. {most}")


def _check_escapes(op: str, escapes: Tensor) -> None:
    if escapes.dim() != 1:
        _fail(op, f"escapes has {escapes.dim()} dimensions, expected 1")
    length = escapes.shape[0]
    if length % 4 != 0:
        _fail(op, f"escapes has {length} entries, expected a multiple of 4")
    if length // 4 > MAX_QUADS:
        _fail(op, f"escapes has {length // 4} quads, the most is {MAX_QUADS}")
    if escapes.stride(0) != 1 and length > 1:
        _fail(op, f"escapes has stride {escapes.stride(0)}, expected 1")


def _check_tile_strides(op: str, payload: Tensor, index: Tensor) -> None:
    several = payload.shape[-2] > 1
    if payload.stride(-1) != 1 or (several and payload.stride(-2) != TILE_BYTES):
        strides = _shape(payload.stride())
        _fail(op, f"payload has strides {strides}, the tiles of a row must be contiguous")
    if several and index.stride(-1) != 1:
        strides = _shape(index.stride())
        _fail(op, f"index has strides {strides}, the tiles of a row must be contiguous")


def _check_packed(
    op: str,
    payload: Tensor,
    index: Tensor,
    escapes: Tensor,
    out_features: int,
    in_features: int,
    base: int,
    experts: bool = False,
) -> None:
    """The rules of check_packed in csrc/torch/checks.cpp, in the same order."""
    _check_dtype(op, "payload", payload, torch.uint8)
    _check_dtype(op, "index", index, torch.int32)
    _check_dtype(op, "escapes", escapes, torch.int32)
    _check_device(op, "index", index, payload.device)
    _check_device(op, "escapes", escapes, payload.device)

    if payload.dim() != 3 and not (experts and payload.dim() == 4):
        ranks = "3 or 4" if experts else "3"
        _fail(op, f"payload has {payload.dim()} dimensions, expected {ranks}")
    *tiles, tile_bytes = payload.shape
    if tile_bytes != TILE_BYTES:
        _fail(op, f"payload has {tile_bytes} bytes a tile, expected {TILE_BYTES}")
    if list(index.shape) != tiles:
        _fail(op, f"index is {_shape(index.shape)}, the tiles of payload are {_shape(tiles)}")
    _check_escapes(op, escapes)

    _check_range(op, "out_features", out_features, 1, MAX_FEATURES)
    _check_range(op, "in_features", in_features, 1, MAX_FEATURES)
    _check_range(op, "base", base, MIN_BASE, MAX_BASE)
    rows, columns = tiles[-2:]
    needed_rows = (out_features + TILE_ROWS - 1) // TILE_ROWS
    needed_columns = (in_features + TILE_COLUMNS - 1) // TILE_COLUMNS
    if rows != needed_rows:
        _fail(
            op,
            f"payload has {rows} tile rows, out_features {out_features} needs {needed_rows}",
        )
    if columns != needed_columns:
        _fail(
            op,
            f"payload has {columns} tile columns, in_features {in_features} needs {needed_columns}",
        )
    _check_tile_strides(op, payload, index)


def _check_gemm(
    x: Tensor, device: torch.device, out_features: int, in_features: int, bias: Tensor | None
) -> None:
    _check_dtype("gemm", "x", x, torch.bfloat16)
    _check_device("gemm", "x", x, device)
    if x.dim() == 0:
        _fail("gemm", "x has 0 dimensions, expected at least 1")
    if x.shape[-1] != in_features:
        _fail(
            "gemm",
            f"x has {x.shape[-1]} columns, the packed weight has in_features {in_features}",
        )
    if bias is None:
        return
    _check_dtype("gemm", "bias", bias, torch.bfloat16)
    _check_device("gemm", "bias", bias, device)
    if bias.dim() != 1 or bias.shape[0] != out_features:
        _fail(
            "gemm",
            f"bias is {_shape(bias.shape)}, the packed weight has out_features {out_features}",
        )


def _check_out(out: Tensor, x: Tensor, device: torch.device, out_features: int) -> None:
    _check_dtype("gemm", "out", out, torch.bfloat16)
    _check_device("gemm", "out", out, device)
    expected = [*x.shape[:-1], out_features]
    if list(out.shape) != expected:
        _fail("gemm", f"out is {_shape(out.shape)}, expected {_shape(expected)}")
    expanded = any(
        size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)
    )
    if expanded:
        _fail(
            "gemm",
            f"out is {_shape(out.shape)} with strides {_shape(out.stride())}, "
            "its elements must not overlap",
        )


@fake("nf12::pack")
def _pack(weight: Tensor, base: int = -1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_dtype("pack", "weight", weight, torch.bfloat16)
    if weight.dim() not in (2, 3):
        _fail("pack", f"weight has {weight.dim()} dimensions, expected 2 or 3")
    if any(size < 1 or size > MAX_FEATURES for size in weight.shape):
        sizes = f"each size must be 1 .. {MAX_FEATURES}"
        _fail("pack", f"weight is {_shape(weight.shape)}, {sizes}")
    if base != -1:
        _check_range("pack", "base", base, MIN_BASE, MAX_BASE)
    *experts, n, k = weight.shape
    tiles = [
        *experts,
        (n + TILE_ROWS - 1) // TILE_ROWS,
        (k + TILE_COLUMNS - 1) // TILE_COLUMNS,
    ]
    quads = get_ctx().new_dynamic_size(min=0, max=MAX_QUADS)
    return (
        weight.new_empty([*tiles, TILE_BYTES], dtype=torch.uint8),
        weight.new_empty(tiles, dtype=torch.int32),
        weight.new_empty([4 * quads], dtype=torch.int32),
        torch.empty([4], dtype=torch.int32, device="cpu"),
    )


@fake("nf12::unpack")
def _unpack(
    payload: Tensor,
    index: Tensor,
    escapes: Tensor,
    out_features: int,
    in_features: int,
    base: int,
) -> Tensor:
    _check_packed("unpack", payload, index, escapes, out_features, in_features, base, experts=True)
    shape = [*payload.shape[:-3], out_features, in_features]
    return payload.new_empty(shape, dtype=torch.bfloat16)


@fake("nf12::check")
def _check(
    payload: Tensor,
    index: Tensor,
    escapes: Tensor,
    out_features: int,
    in_features: int,
    base: int,
    version: int,
) -> None:
    _fail("check", "it reads the data and runs eagerly only, not on meta tensors or traced")


@fake("nf12::gather")
def _gather(
    ids: Tensor,
    payload: Tensor,
    index: Tensor,
    escapes: Tensor,
    out_features: int,
    in_features: int,
    base: int,
) -> Tensor:
    _check_packed("gather", payload, index, escapes, out_features, in_features, base)
    if ids.dtype not in (torch.int32, torch.int64):
        _fail("gather", f"ids has dtype {_dtype(ids.dtype)}, expected int32 or int64")
    _check_device("gather", "ids", ids, payload.device)
    return payload.new_empty([*ids.shape, in_features], dtype=torch.bfloat16)


@fake("nf12::_gemm")
@fake("nf12::gemm")
def _gemm(
    x: Tensor,
    payload: Tensor,
    index: Tensor,
    escapes: Tensor,
    out_features: int,
    in_features: int,
    base: int,
    bias: Tensor | None = None,
) -> Tensor:
    _check_packed("gemm", payload, index, escapes, out_features, in_features, base)
    _check_gemm(x, payload.device, out_features, in_features, bias)
    return x.new_empty([*x.shape[:-1], out_features])


@fake("nf12::gemm.out")
def _gemm_out(
    x: Tensor,
    payload: Tensor,
    index: Tensor,
    escapes: Tensor,
    out_features: int,
    in_features: int,
    base: int,
    bias: Tensor | None = None,
    *,
    out: Tensor,
) -> None:
    _check_packed("gemm", payload, index, escapes, out_features, in_features, base)
    _check_gemm(x, payload.device, out_features, in_features, bias)
    _check_out(out, x, payload.device, out_features)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _x, payload, index, escapes, *ctx.integers, _bias = inputs
    ctx.save_for_backward(payload, index, escapes)


def _gemm_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """dx = bf16(dy W) from the exact W, db = sum(dy); the packed weight is frozen."""
    dx = db = None
    if ctx.needs_input_grad[0]:
        dx = torch.matmul(dy, torch.ops.nf12.unpack(*ctx.saved_tensors, *ctx.integers))
    # Traced code and autocast leave out a bias that is None, and with it its flag.
    if len(ctx.needs_input_grad) > 7 and ctx.needs_input_grad[7]:
        db = dy.sum(dim=list(range(dy.dim() - 1))) if dy.dim() > 1 else dy
    return dx, None, None, None, None, None, None, db


register_autograd("nf12::gemm", _gemm_backward, setup_context=_save_for_backward)


class RecordedGemm(torch.autograd.Function):
    """The same record for eager callers, without the 50 us a call that register_autograd spends on
    schema and signature (2-core EPYC, torch 2.13): no setup_context, all arguments by position."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        result: Tensor = torch.ops.nf12._gemm(*inputs)
        _save_for_backward(ctx, inputs, result)
        return result

    backward = staticmethod(_gemm_backward)


def _gemm_out_autograd(keyset: Any, *args: Any, out: Tensor, **kwargs: Any) -> None:
    """Says that a gradient would be lost, and marks `out` as written for autograd's checks."""
    tensors = [t for t in (*args, *kwargs.values(), out) if isinstance(t, Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        _fail("gemm", "out= has no gradient, but x, bias or out requires one")
    torch.autograd.graph.increment_version(out)
    with torch._C._AutoDispatchBelowADInplaceOrView():
        below = keyset & torch._C._after_ADInplaceOrView_keyset
        torch.ops.nf12.gemm.out.redispatch(below, *args, out=out, **kwargs)


_registrations = torch.library.Library("nf12", "IMPL")  # type: ignore[no-untyped-call]
_registrations.impl(  # type: ignore[no-untyped-call]
    "gemm.out", _gemm_out_autograd, "Autograd", with_keyset=True
)

for _op in ("nf12::gemm", "nf12::_gemm"):
    for _device in ("cpu", "cuda"):
        register_autocast(_op, _device, torch.bfloat16)
