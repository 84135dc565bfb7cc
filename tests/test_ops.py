"""The operators as torch sees them: opcheck, compile, export, gradients, autocast, layouts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import (
    GuardedBuffer,
    activations,
    assert_bits_equal,
    assert_gemm_close,
    bits,
    offset_rows,
    realistic_weights,
    special_weights,
)
from torch import Tensor
from torch.library import opcheck

import nf12  # noqa: F401  (registers the operators)

ops = torch.ops.nf12
N, K = 100, 200  # a row tail and a column tail
Packed = tuple[Tensor, Tensor, Tensor, int, int, int]


def pack(weight: Tensor) -> Packed:
    payload, index, escapes, meta = ops.pack(weight)
    _, n, k, base = meta.tolist()
    return payload, index, escapes, n, k, base


def spread(packed: Packed) -> Packed:
    """The same packed weight with gaps between tile rows and a storage offset everywhere."""
    payload, index, escapes, *rest = packed
    wide = torch.zeros(payload.shape[0], payload.shape[1] + 1, 1536, dtype=torch.uint8)
    wide[:, 1:] = payload
    words = torch.zeros(index.shape[0], index.shape[1] + 2, dtype=torch.int32)
    words[:, 2:] = index
    table = torch.cat([torch.zeros(4, dtype=torch.int32), escapes])
    return wide[:, 1:], words[:, 2:], table[4:], *rest  # type: ignore[return-value]


@pytest.fixture(scope="module")
def weight() -> Tensor:
    return realistic_weights(N, K, escape_rate=2e-3, tile_share=0.5)


@pytest.fixture(scope="module")
def packed(weight: Tensor) -> Packed:
    return pack(weight)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "offset_rows": offset_rows,
    "transposed": lambda x: x.mT.contiguous().mT,
    "every_second_column": lambda x: torch.stack([x, x + 1], -1).flatten(-2)[..., ::2],
    "long_single_rows": lambda x: torch.cat([x, x], -1)[..., :K],
    "permuted": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda x: x[:1, :1].expand(x.shape),
}


# ---- opcheck ------------------------------------------------------------------------------------


def opcheck_cases(p: Packed) -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    s = spread(p)
    x, bias = activations(2, 3, K), activations(N)
    ids = torch.tensor([[3, 0, 99], [7, 7, 1]])
    stack = pack(realistic_weights(3, 20, 70))
    out = GuardedBuffer.create(3, N).view
    grad_x, grad_bias = x.clone().requires_grad_(), bias.clone().requires_grad_()
    return {
        "pack": (ops.pack.default, (realistic_weights(33, 65),), {}),
        "pack-stack-base": (ops.pack.default, (realistic_weights(2, 17, 64), 112), {}),
        "pack-transposed": (ops.pack.default, (realistic_weights(65, 33).T,), {}),
        "unpack": (ops.unpack.default, p, {}),
        "unpack-strided": (ops.unpack.default, s, {}),
        "unpack-stack": (ops.unpack.default, stack, {}),
        "gather": (ops.gather.default, (ids, *p), {}),
        "gather-int32-strided": (ops.gather.default, (ids.int().T, *s), {}),
        "gather-no-ids": (ops.gather.default, (ids[:, :0], *p), {}),
        "gemm": (ops.gemm.default, (x, *p), {}),
        "gemm-bias-grad": (ops.gemm.default, (grad_x, *p, grad_bias), {}),
        "gemm-strided": (ops.gemm.default, (offset_rows(x), *s, bias.repeat(2)[::2]), {}),
        "gemm-transposed": (ops.gemm.default, (x.mT.contiguous().mT, *p), {}),
        "gemm-vector": (ops.gemm.default, (x[0, 0], *p), {}),
        "gemm-no-rows": (ops.gemm.default, (x[:0], *p, bias), {}),
        "gemm.out": (ops.gemm.out, (x[0], *p, bias), {"out": torch.empty(3, N).bfloat16()}),
        "gemm.out-strided": (ops.gemm.out, (x[0], *s), {"out": out}),
        "_gemm": (ops._gemm.default, (x, *p, bias), {}),
    }


@pytest.mark.parametrize("case", opcheck_cases(pack(realistic_weights(N, K))))
def test_opcheck(case: str, packed: Packed) -> None:
    op, args, kwargs = opcheck_cases(packed)[case]
    opcheck(op, args, kwargs)


def test_opcheck_of_check_which_is_eager_only(packed: Packed) -> None:
    tests = ("test_schema", "test_autograd_registration")
    opcheck(ops.check.default, (*packed, 1), test_utils=tests)


# ---- layouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [(1, 1), (1, 5), (4, 1), (2, 3)], ids=str)
def test_gemm_takes_x_of_any_layout(layout: str, rows: tuple[int, int], packed: Packed) -> None:
    x = LAYOUTS[layout](activations(*rows, K))
    y = ops.gemm(x, *packed)
    assert y.is_contiguous()
    assert_bits_equal(y, ops.gemm(x.clone(memory_format=torch.contiguous_format), *packed))


def test_gemm_believes_no_stride_of_a_single_row(packed: Packed) -> None:
    # Torch calls this row contiguous; whoever multiplies its stride by a row count reads far away.
    row = torch.as_strided(activations(K), (1, K), (1 << 40, 1))
    assert row.is_contiguous()
    assert_bits_equal(ops.gemm(row, *packed), ops.gemm(row.flatten(), *packed).unsqueeze(0))


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_gemm_takes_x_of_any_rank(rank: int, packed: Packed, weight: Tensor) -> None:
    x = activations(*(2,) * (rank - 1), K)
    y = ops.gemm(x, *packed)
    assert y.shape == (*x.shape[:-1], N)
    assert_gemm_close(y.reshape(-1, N), x.reshape(-1, K), weight)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 2)], ids=str)
def test_gemm_of_no_rows(shape: tuple[int, ...], packed: Packed) -> None:
    x = torch.empty(*shape, K, dtype=torch.bfloat16)
    assert ops.gemm(x, *packed).shape == (*shape, N)
    ops.gemm.out(x, *packed, out=torch.empty(*shape, N, dtype=torch.bfloat16))


def test_strided_packed_weight_gives_the_same_bits(packed: Packed, weight: Tensor) -> None:
    view = spread(packed)
    assert_bits_equal(ops.unpack(*view), weight)
    x = activations(3, K)
    assert_bits_equal(ops.gemm(x, *view), ops.gemm(x, *packed))
    ids = torch.tensor([99, 0, 17])
    assert_bits_equal(ops.gather(ids, *view), weight[ids])
    ops.check(*view, 1)


def test_slices_along_rows_and_columns_are_packed_weights(packed: Packed, weight: Tensor) -> None:
    payload, index, escapes, _, _, base = packed
    rows = payload[2:5], index[2:5], escapes, 48, K, base
    columns = payload[:, 1:3], index[:, 1:3], escapes, N, 128, base
    tail = payload[6:, 3:], index[6:, 3:], escapes, 4, 8, base
    assert_bits_equal(ops.unpack(*rows), weight[32:80])
    assert_bits_equal(ops.unpack(*columns), weight[:, 64:192].contiguous())
    assert_bits_equal(ops.unpack(*tail), weight[96:, 192:].contiguous())
    for part in (rows, columns, tail):
        ops.check(*part, 1)


def test_one_tile_row_repeated_by_stride_zero(packed: Packed, weight: Tensor) -> None:
    payload, index, escapes, _, _, base = packed
    repeated = payload[:1].expand(5, -1, -1), index[:1].expand(5, -1), escapes, 80, K, base
    assert_bits_equal(ops.unpack(*repeated), weight[:16].repeat(5, 1))


@pytest.mark.parametrize("shape", [(37, 90), (3, 37, 90), (37, 1), (1, 90)], ids=str)
def test_pack_takes_any_layout(shape: tuple[int, ...]) -> None:
    w = special_weights(*shape)
    expected = ops.pack(w)
    for view in (offset_rows(w), w.mT.contiguous().mT, torch.stack([w, w], -1)[..., 0]):
        for actual, wanted in zip(ops.pack(view), expected, strict=True):
            assert_bits_equal(actual, wanted)


def test_experts_of_a_strided_stack() -> None:
    w = special_weights(4, 20, 70)
    payload, index, escapes, *rest = pack(w)
    halves = payload[::2], index[::2], escapes, *rest
    assert_bits_equal(ops.unpack(*halves), w[::2].contiguous())
    none = payload[:0], index[:0], escapes, *rest
    assert ops.unpack(*none).shape == (0, 20, 70)
    one = payload[3], index[3], escapes, *rest
    assert_bits_equal(ops.unpack(*one), w[3])


def test_negated_and_zero_tensors_are_read_as_their_values(packed: Packed) -> None:
    x = activations(3, K)
    assert_bits_equal(ops.gemm(torch._neg_view(x), *packed), ops.gemm(-x, *packed))
    zero = torch._efficientzerotensor((3, K), dtype=torch.bfloat16)
    assert not bits(ops.gemm(zero, *packed)).bitwise_and(0x7FFF).any()


def test_deep_copied_operands(packed: Packed) -> None:
    x = activations(3, K)
    assert_bits_equal(ops.gemm(x, *copy.deepcopy(packed)), ops.gemm(x, *packed))


# ---- gemm.out -----------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 7])
def test_out_writes_its_elements_and_no_other(m: int, packed: Packed) -> None:
    x, bias = activations(m, K), activations(N)
    buffer = GuardedBuffer.create(m, N)
    assert ops.gemm.out(x, *packed, bias, out=buffer.view) is None
    buffer.check()
    assert_bits_equal(buffer.view, ops.gemm(x, *packed, bias))


@pytest.mark.parametrize(
    "layout",
    [
        lambda: torch.empty(N, 6, dtype=torch.bfloat16).T.view(2, 3, N),
        lambda: torch.empty(2, 3, 2 * N, dtype=torch.bfloat16)[..., ::2],
        lambda: torch.empty(3, 2, N, dtype=torch.bfloat16).transpose(0, 1),
    ],
    ids=["column-major", "every-second-column", "permuted"],
)
def test_out_of_any_layout(layout: Callable[[], Tensor], packed: Packed) -> None:
    x = activations(2, 3, K)
    out = layout()
    ops.gemm.out(x, *packed, out=out)
    assert_bits_equal(out, ops.gemm(x, *packed))


def test_out_beside_x_in_one_buffer(packed: Packed) -> None:
    buffer = torch.zeros(4, K + N, dtype=torch.bfloat16)
    x, out = buffer[:, :K], buffer[:, K:]
    x.copy_(activations(4, K))
    ops.gemm.out(x, *packed, out=out)
    assert_bits_equal(out, ops.gemm(activations(4, K), *packed))
    assert_bits_equal(x, activations(4, K))


def test_out_is_seen_by_autograd(packed: Packed) -> None:
    x = activations(3, K)
    out = torch.zeros(3, N, dtype=torch.bfloat16)
    saved = activations(3, N, seed=4).requires_grad_() * out
    ops.gemm.out(x, *packed, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()

    text = "nf12::gemm: out= has no gradient, but x, bias or out requires one"
    for grad in ({"x": x.clone().requires_grad_()}, {"bias": activations(N).requires_grad_()}):
        call = {"x": x, "bias": None} | grad
        with pytest.raises(RuntimeError, match=text):
            ops.gemm.out(call["x"], *packed, call["bias"], out=out)
        with torch.no_grad():
            ops.gemm.out(call["x"], *packed, call["bias"], out=out)


# ---- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("wanted", ["x", "bias", "both"])
def test_gradients_are_those_of_the_dense_layer(
    lead: tuple[int, ...], wanted: str, packed: Packed, weight: Tensor
) -> None:
    x = activations(*lead, K).requires_grad_(wanted != "bias")
    bias = activations(N, seed=2).requires_grad_(wanted != "x")
    dy = activations(*lead, N, seed=3)
    ops.gemm(x, *packed, bias).backward(dy)

    if wanted == "bias":
        assert x.grad is None
    else:
        assert x.grad is not None and x.grad.dtype == torch.bfloat16
        assert_gemm_close(x.grad.reshape(-1, K), dy.reshape(-1, N), weight.T)
    if wanted == "x":
        assert bias.grad is None
    else:
        exact = dy.double().reshape(-1, N).sum(0)
        assert bias.grad is not None
        error = (bias.grad.double() - exact).abs()
        assert bool((error <= exact.abs() * 2**-8 + 1e-6).all())


def test_gradient_of_a_gradient(packed: Packed, weight: Tensor) -> None:
    x = activations(4, K).requires_grad_()
    dy = activations(4, N, seed=3).requires_grad_()
    (dx,) = torch.autograd.grad(ops.gemm(x, *packed), x, dy, create_graph=True)
    v = activations(4, K, seed=5)
    (ddy,) = torch.autograd.grad(dx, dy, v)
    assert_gemm_close(ddy, v, weight)


def test_backward_keeps_the_packed_weight_only(packed: Packed) -> None:
    saved: list[Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t)
    with hooks:
        ops.gemm(activations(4, K).requires_grad_(), *packed)
    assert {t.dtype for t in saved} == {torch.uint8, torch.int32}


def test_no_gradient_through_integers(packed: Packed, weight: Tensor) -> None:
    assert not ops.unpack(*packed).requires_grad
    assert not ops.gather(torch.tensor([1]), *packed).requires_grad
    assert not any(t.requires_grad for t in ops.pack(weight.clone().requires_grad_()))
    assert not ops.gemm(activations(2, K), *packed).requires_grad


# ---- modes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [ops.gemm, ops._gemm], ids=["gemm", "_gemm"])
def test_autocast_casts_x_and_bias(op: Any, packed: Packed) -> None:
    x, bias = activations(3, K), activations(N)
    with torch.autocast("cpu", torch.bfloat16):
        y = op(x.float(), *packed, bias.float())
    assert_bits_equal(y, ops.gemm(x, *packed, bias))


def test_autocast_keeps_gradients_in_the_dtype_of_x(packed: Packed) -> None:
    x = activations(3, K).float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = ops.gemm(x, *packed)
    y.sum().backward()
    assert y.dtype == torch.bfloat16
    assert x.grad is not None and x.grad.dtype == torch.float32


def test_inference_mode_tensors(packed: Packed) -> None:
    with torch.inference_mode():
        x = activations(3, K)
        y = ops.gemm(x, *packed)
        assert y.is_inference()
    assert_bits_equal(y.clone(), ops.gemm(activations(3, K), *packed))


def test_functionalized_calls(packed: Packed) -> None:
    def run(x: Tensor) -> Tensor:
        y = torch.zeros(x.shape[0], N, dtype=torch.bfloat16)
        y.copy_(ops.gemm(x.mul_(2), *packed))
        return y

    functional = torch.func.functionalize(run)(activations(3, K))
    assert_bits_equal(functional, ops.gemm(activations(3, K) * 2, *packed))


def test_threads_do_not_change_a_bit(packed: Packed, weight: Tensor) -> None:
    x = activations(9, K)
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append((ops.gemm(x, *packed), ops.unpack(*packed), *ops.pack(weight)))
    for other in results[1:]:
        for actual, expected in zip(other, results[0], strict=True):
            assert_bits_equal(actual, expected)


# ---- compile and export -------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self, packed: Packed) -> None:
        super().__init__()
        for name, tensor in zip(("payload", "index", "escapes"), packed[:3], strict=True):
            self.register_buffer(name, tensor)
        self.integers = packed[3:]
        self.bias = torch.nn.Parameter(activations(N))

    def packed(self) -> tuple[Any, ...]:
        return self.payload, self.index, self.escapes, *self.integers

    def forward(self, ids: Tensor) -> Tensor:
        x = ops.gather(ids, *self.packed())
        return torch.relu(ops.gemm(x, *self.packed(), self.bias)) @ ops.unpack(*self.packed())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_whole_graph_with_dynamic_shapes(backend: str, packed: Packed) -> None:
    block = Block(packed)
    graphs = 0

    def count(graph: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    compiled = torch.compile(block, backend=count, fullgraph=True, dynamic=True)
    for rows in (5, 3, 7):
        ids = torch.arange(rows * 2).view(rows, 2)
        torch.testing.assert_close(compiled(ids), block(ids), rtol=2e-2, atol=2e-2)
        compiled(ids).float().sum().backward()
    assert graphs == 1, "a new number of rows recompiled the graph"


def test_compile_pack_whose_table_length_is_data() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    def repack(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        payload, index, escapes, _meta = ops.pack(w, 112)
        packed = payload, index, escapes, w.shape[0], w.shape[1], 112
        return ops.unpack(*packed), ops.gemm(x, *packed)

    for share in (0.0, 0.01, 0.3):
        w = special_weights(40, 130, share=share)
        x = activations(3, 130)
        unpacked, y = repack(w, x)
        assert_bits_equal(unpacked, w)
        assert_bits_equal(y, ops.gemm(x, *pack_with_base(w, 112)))


def pack_with_base(weight: Tensor, base: int) -> Packed:
    payload, index, escapes, _ = ops.pack(weight, base)
    return payload, index, escapes, *weight.shape, base  # type: ignore[return-value]


def test_compile_mutates_out(packed: Packed) -> None:
    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    def run(x: Tensor, out: Tensor) -> Tensor:
        ops.gemm.out(x, *packed, out=out)
        return out * 2

    x = activations(3, K)
    out = torch.zeros(3, N, dtype=torch.bfloat16)
    assert_bits_equal(run(x, out), ops.gemm(x, *packed) * 2)
    assert_bits_equal(out, ops.gemm(x, *packed))


def test_export_with_dynamic_rows(packed: Packed) -> None:
    block = Block(packed)
    rows = torch.export.Dim("rows", min=1, max=512)
    program = torch.export.export(
        block, (torch.zeros(4, 2, dtype=torch.int64),), dynamic_shapes=({0: rows},)
    )
    for count in (1, 4, 33):
        ids = torch.arange(count * 2).view(count, 2) % N
        assert_bits_equal(program.module()(ids), block(ids))


def test_eager_only_check_is_refused_in_a_graph(packed: Packed) -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def run(x: Tensor) -> Tensor:
        ops.check(*packed, 1)
        return x + 1

    with pytest.raises(Exception, match="eagerly only"):
        run(torch.zeros(1))
