"""What is registered with torch: schemas as published, and fake kernels that foretell the real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import activations, realistic_weights
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import nf12  # noqa: F401  (registers the operators)

ops = torch.ops.nf12
PACKED = "Tensor payload, Tensor index, Tensor escapes, int out_features, int in_features, int base"

SCHEMAS = {
    "pack.default": "pack(Tensor weight, int base=-1) -> "
    "(Tensor payload, Tensor index, Tensor escapes, Tensor meta)",
    "unpack.default": f"unpack({PACKED}) -> Tensor",
    "gemm.default": f"gemm(Tensor x, {PACKED}, Tensor? bias=None) -> Tensor",
    "gemm.out": f"gemm.out(Tensor x, {PACKED}, Tensor? bias=None, *, Tensor(a!) out) -> ()",
    "_gemm.default": f"_gemm(Tensor x, {PACKED}, Tensor? bias=None) -> Tensor",
    "check.default": f"check({PACKED}, int version) -> ()",
    "gather.default": f"gather(Tensor ids, {PACKED}) -> Tensor",
}


def overload(name: str) -> Any:
    packet, which = name.split(".")
    return getattr(getattr(ops, packet), which)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_is_the_published_one(name: str) -> None:
    assert str(overload(name)._schema) == "nf12::" + SCHEMAS[name]


def test_no_other_operator_is_registered() -> None:
    names = {n for n in torch._C._dispatch_get_all_op_names() if n.startswith("nf12::")}
    expected = {"nf12::" + n.removesuffix(".default") for n in SCHEMAS}
    assert names == expected


@pytest.mark.parametrize("key", ["CPU", "CUDA", "Meta"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_kernel_is_registered(name: str, key: str) -> None:
    qualified = "nf12::" + name.removesuffix(".default")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key)


def test_only_gemm_pays_for_autograd() -> None:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    assert has_kernel("nf12::gemm", "Autograd")
    assert has_kernel("nf12::gemm.out", "Autograd")  # refuses, see test_ops.py
    assert not has_kernel("nf12::_gemm", "Autograd")


@pytest.mark.parametrize("name", ["nf12::gemm", "nf12::_gemm"])
@pytest.mark.parametrize("key", ["AutocastCPU", "AutocastCUDA"])
def test_autocast_is_registered(name: str, key: str) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


# ---- fake kernels -------------------------------------------------------------------------------


def describe(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device.type, tensor.layout


def packed_of(*shape: int) -> tuple[Any, ...]:
    payload, index, escapes, meta = ops.pack(realistic_weights(*shape))
    return payload, index, escapes, *meta.tolist()[1:]


CALLS: dict[str, Callable[[], Tensor]] = {
    "unpack": lambda: ops.unpack(*packed_of(100, 200)),
    "unpack-one-weight": lambda: ops.unpack(*packed_of(1, 1)),
    "unpack-stack": lambda: ops.unpack(*packed_of(3, 17, 65)),
    "gather": lambda: ops.gather(torch.tensor([[1, 2]]), *packed_of(100, 200)),
    "gather-one": lambda: ops.gather(torch.tensor(5), *packed_of(100, 200)),
    "gather-none": lambda: ops.gather(torch.zeros(0, 3).int(), *packed_of(100, 200)),
    "gemm": lambda: ops.gemm(activations(2, 3, 200), *packed_of(100, 200), activations(100)),
    "gemm-vector": lambda: ops.gemm(activations(200), *packed_of(100, 200)),
    "gemm-no-rows": lambda: ops.gemm(activations(0, 4, 200), *packed_of(100, 200)),
    "gemm-transposed-x": lambda: ops.gemm(activations(200, 5).T, *packed_of(100, 200)),
    "gemm-permuted-x": lambda: ops.gemm(
        activations(4, 3, 200).transpose(0, 1), *packed_of(100, 200)
    ),
    "gemm-expanded-x": lambda: ops.gemm(activations(200).expand(7, 200), *packed_of(100, 200)),
    "_gemm": lambda: ops._gemm(activations(2, 3, 200), *packed_of(100, 200)),
}


class _Compare(torch.utils._python_dispatch.TorchDispatchMode):
    """Runs each nf12 operator twice: as it is, and on fake copies of its arguments."""

    def __init__(self) -> None:
        self.compared = 0
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "nf12" and isinstance(result, Tensor):
            with FakeTensorMode() as mode:
                fakes = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in args]
                assert describe(func(*fakes, **(kwargs or {}))) == describe(result)
            self.compared += 1
        return result


@pytest.mark.parametrize("call", CALLS)
def test_fake_result_is_like_the_real_one(call: str) -> None:
    with _Compare() as comparison, torch.inference_mode():
        CALLS[call]()
    assert comparison.compared == 1


@pytest.mark.parametrize("shape", [(33, 65), (2, 33, 65), (1, 1)], ids=str)
def test_fake_pack_knows_all_but_the_table_length(shape: tuple[int, ...]) -> None:
    w = realistic_weights(*shape)
    real = ops.pack(w)
    with FakeTensorMode(shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv()) as mode:
        fake = ops.pack(mode.from_tensor(w))
    for name, f, r in zip(("payload", "index", "escapes", "meta"), fake, real, strict=True):
        assert (f.dtype, f.device.type, f.stride()) == (r.dtype, r.device.type, r.stride()), name
        if name != "escapes":
            assert f.shape == r.shape, name
    assert fake[2].dim() == 1 and str(fake[2].shape[0].node.expr).startswith("4*")


def test_meta_tensors_give_shapes_without_memory() -> None:
    rows, columns = 1 << 20, 1 << 14
    payload = torch.empty(rows, columns, 1536, dtype=torch.uint8, device="meta")
    index = torch.empty(rows, columns, dtype=torch.int32, device="meta")
    escapes = torch.empty(0, dtype=torch.int32, device="meta")
    packed = payload, index, escapes, rows * 16, columns * 64, 112
    x = torch.empty(1 << 10, columns * 64, dtype=torch.bfloat16, device="meta")
    assert ops.gemm(x, *packed).shape == (1 << 10, rows * 16)
    assert ops.unpack(*packed).shape == (rows * 16, columns * 64)
