"""Bad calls: each raises, naming the operator, the rule and the value, with one text for real and
traced code. Nothing here may crash, whatever is passed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import activations, realistic_weights
from torch import Tensor

import nf12

ops = torch.ops.nf12
N, K = 100, 200
R, C = 7, 4

_payload, _index, _escapes, _meta = ops.pack(realistic_weights(N, K, escape_rate=2e-3))
BASE = int(_meta[3])
GOOD: dict[str, Any] = {
    "payload": _payload,
    "index": _index,
    "escapes": _escapes,
    "out_features": N,
    "in_features": K,
    "base": BASE,
}


def packed(**changes: Any) -> tuple[Any, ...]:
    return tuple((GOOD | changes).values())


def stack(experts: int) -> dict[str, Tensor]:
    return {
        "payload": _payload.expand(experts, *_payload.shape),
        "index": _index.expand(experts, *_index.shape),
    }


# What is wrong with a packed weight, and what every operator says of it after "nf12::<op>: ".
PACKED: dict[str, tuple[dict[str, Any], str]] = {
    "payload-dtype": (
        {"payload": _payload.int()},
        "payload has dtype int32, expected uint8",
    ),
    "index-dtype": (
        {"index": _index.long()},
        "index has dtype int64, expected int32",
    ),
    "escapes-dtype": (
        {"escapes": _escapes.float()},
        "escapes has dtype float32, expected int32",
    ),
    "index-device": (
        {"index": _index.to("meta")},
        "index is on meta, the packed weight is on cpu",
    ),
    "escapes-device": (
        {"escapes": _escapes.to("meta")},
        "escapes is on meta, the packed weight is on cpu",
    ),
    "payload-rank": (
        {"payload": _payload[0]},
        "payload has 2 dimensions, expected 3",
    ),
    "payload-rank-5": (
        {"payload": _payload[None, None]},
        "payload has 5 dimensions, expected 3",
    ),
    "payload-scalar": (
        {"payload": _payload[0, 0, 0]},
        "payload has 0 dimensions, expected 3",
    ),
    "tile-bytes": (
        {"payload": _payload[..., :1500]},
        "payload has 1500 bytes a tile, expected 1536",
    ),
    "no-tile-bytes": (
        {"payload": _payload[..., :0]},
        "payload has 0 bytes a tile, expected 1536",
    ),
    "index-shape": (
        {"index": _index[:, :3]},
        f"index is [{R}, 3], the tiles of payload are [{R}, {C}]",
    ),
    "index-rank": (
        {"index": _index[None]},
        f"index is [1, {R}, {C}], the tiles of payload are [{R}, {C}]",
    ),
    "index-empty": (
        {"index": _index[:0]},
        f"index is [0, {C}], the tiles of payload are [{R}, {C}]",
    ),
    "escapes-rank": (
        {"escapes": _escapes.view(-1, 4)},
        "escapes has 2 dimensions, expected 1",
    ),
    "escapes-length": (
        {"escapes": torch.zeros(6, dtype=torch.int32)},
        "escapes has 6 entries, expected a multiple of 4",
    ),
    "escapes-too-long": (
        {"escapes": torch.zeros(1, dtype=torch.int32).expand((1 << 26) + 4)},
        f"escapes has {(1 << 24) + 1} quads, the most is {1 << 24}",
    ),
    "escapes-stride": (
        {"escapes": torch.zeros(16, dtype=torch.int32)[::2]},
        "escapes has stride 2, expected 1",
    ),
    "out-features-zero": (
        {"out_features": 0},
        "out_features is 0, expected 1 .. 2147483647",
    ),
    "out-features-negative": (
        {"out_features": -100},
        "out_features is -100, expected 1 .. 2147483647",
    ),
    "in-features-past-int32": (
        {"in_features": 1 << 31},
        "in_features is 2147483648, expected 1 .. 2147483647",
    ),
    "in-features-least": (
        {"in_features": -(1 << 63)},
        "in_features is -9223372036854775808, expected 1 .. 2147483647",
    ),
    "out-features-most": (
        {"out_features": (1 << 63) - 1},
        "out_features is 9223372036854775807, expected 1 .. 2147483647",
    ),
    "base-low": ({"base": 95}, "base is 95, expected 96 .. 128"),
    "base-high": ({"base": 129}, "base is 129, expected 96 .. 128"),
    "rows": (
        {"out_features": 96},
        f"payload has {R} tile rows, out_features 96 needs 6",
    ),
    "columns": (
        {"in_features": 257},
        f"payload has {C} tile columns, in_features 257 needs 5",
    ),
    "no-rows": (
        {"payload": _payload[:0], "index": _index[:0]},
        f"payload has 0 tile rows, out_features {N} needs {R}",
    ),
    "payload-byte-stride": (
        {"payload": _payload.repeat_interleave(2, -1)[..., ::2]},
        f"payload has strides [{C * 3072}, 3072, 2], the tiles of a row must be contiguous",
    ),
    "payload-tile-stride": (
        {"payload": _payload.transpose(0, 1).contiguous().transpose(0, 1)},
        f"payload has strides [1536, {R * 1536}, 1], the tiles of a row must be contiguous",
    ),
    "index-stride": (
        {"index": _index.T.contiguous().T},
        f"index has strides [1, {R}], the tiles of a row must be contiguous",
    ),
}

OPERATORS: dict[str, Callable[..., Any]] = {
    "gemm": lambda *p: ops.gemm(activations(2, K), *p),
    "unpack": ops.unpack,
    "gather": lambda *p: ops.gather(torch.tensor([1]), *p),
    "check": lambda *p: ops.check(*p, 1),
}


def text_of(call: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as error:
        call()
    return str(error.value)


def to_meta(value: Any) -> Any:
    """Without data, with the strides (`.to` would make it dense)."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


# check has no kernel for mixed devices: one meta tensor takes the call to its fake kernel.
@pytest.mark.parametrize(
    ("op", "case"),
    [(o, c) for o in OPERATORS for c in PACKED if not (o == "check" and c.endswith("-device"))],
)
def test_bad_packed_weight(op: str, case: str) -> None:
    changes, text = PACKED[case]
    if op in ("unpack", "check") and text.endswith("dimensions, expected 3"):
        text += " or 4"
    assert text_of(lambda: OPERATORS[op](*packed(**changes))) == f"nf12::{op}: {text}"


@pytest.mark.parametrize("case", [case for case in PACKED if not case.endswith("-device")])
@pytest.mark.parametrize("op", ["gemm", "unpack", "gather"])
def test_traced_code_says_the_same_of_a_packed_weight(op: str, case: str) -> None:
    def call() -> Any:
        values = [to_meta(value) for value in packed(**PACKED[case][0])]
        if op == "gemm":
            return ops.gemm(activations(2, K).to("meta"), *values)
        if op == "gather":
            return ops.gather(torch.tensor([1]).to("meta"), *values)
        return ops.unpack(*values)

    assert text_of(call) == text_of(lambda: OPERATORS[op](*packed(**PACKED[case][0])))


# ---- gemm ---------------------------------------------------------------------------------------

X = activations(3, K)
OUT = torch.empty(3, N, dtype=torch.bfloat16)
GEMM: dict[str, tuple[dict[str, Any], str]] = {
    "x-dtype": ({"x": X.float()}, "x has dtype float32, expected bfloat16"),
    "x-half": ({"x": X.half()}, "x has dtype float16, expected bfloat16"),
    "x-complex": ({"x": X.to(torch.cfloat)}, "x has dtype complex64, expected bfloat16"),
    "x-float8": (
        {"x": X.to(torch.float8_e4m3fn)},
        "x has dtype float8_e4m3fn, expected bfloat16",
    ),
    "x-bool": ({"x": X > 0}, "x has dtype bool, expected bfloat16"),
    "x-scalar": ({"x": X[0, 0]}, "x has 0 dimensions, expected at least 1"),
    "x-columns": (
        {"x": activations(3, K + 1)},
        f"x has {K + 1} columns, the packed weight has in_features {K}",
    ),
    "x-no-columns": (
        {"x": X[:, :0]},
        f"x has 0 columns, the packed weight has in_features {K}",
    ),
    "x-device": ({"x": X.to("meta")}, "x is on meta, the packed weight is on cpu"),
    "stack": (stack(2), "payload has 4 dimensions, expected 3"),
    "bias-dtype": (
        {"bias": torch.zeros(N)},
        "bias has dtype float32, expected bfloat16",
    ),
    "bias-shape": (
        {"bias": activations(N - 1)},
        f"bias is [{N - 1}], the packed weight has out_features {N}",
    ),
    "bias-rank": (
        {"bias": activations(1, N)},
        f"bias is [1, {N}], the packed weight has out_features {N}",
    ),
    "bias-scalar": (
        {"bias": activations(1)[0]},
        f"bias is [], the packed weight has out_features {N}",
    ),
    "bias-device": (
        {"bias": activations(N).to("meta")},
        "bias is on meta, the packed weight is on cpu",
    ),
    "out-dtype": ({"out": OUT.float()}, "out has dtype float32, expected bfloat16"),
    "out-shape": ({"out": OUT[:2]}, f"out is [2, {N}], expected [3, {N}]"),
    "out-rank": ({"out": OUT[None]}, f"out is [1, 3, {N}], expected [3, {N}]"),
    "out-device": ({"out": OUT.to("meta")}, "out is on meta, the packed weight is on cpu"),
    "out-expanded": (
        {"out": OUT[:1].expand(3, N)},
        f"out is [3, {N}] with strides [0, 1], its elements must not overlap",
    ),
}


def gemm(**changes: Any) -> Any:
    arguments = {"x": X, **GOOD, "bias": None} | changes
    out = arguments.pop("out", None)
    if out is None:
        return ops.gemm(**arguments)
    return ops.gemm.out(**arguments, out=out)


@pytest.mark.parametrize("case", GEMM)
def test_bad_gemm(case: str) -> None:
    changes, text = GEMM[case]
    assert text_of(lambda: gemm(**changes)) == "nf12::gemm: " + text


@pytest.mark.parametrize("case", [case for case in GEMM if not case.endswith("-device")])
def test_traced_code_says_the_same_of_gemm(case: str) -> None:
    changes, text = GEMM[case]
    meta = {name: to_meta(value) for name, value in (GOOD | {"x": X} | changes).items()}
    assert text_of(lambda: gemm(**meta)) == "nf12::gemm: " + text


def overlapping_windows() -> Tensor:
    return torch.zeros(4 * N, dtype=torch.bfloat16).as_strided((3, N), (N - 1, 1))


def out_inside(tensor: Tensor, offset_bytes: int) -> Tensor:
    flat = tensor.view(-1).view(torch.uint8)[offset_bytes:][: 6 * N]
    return flat.view(torch.bfloat16).view(3, N)


def test_out_whose_rows_overlap() -> None:
    text = f"nf12::gemm: out is [3, {N}] with strides [{N - 1}, 1], its elements must not overlap"
    assert text_of(lambda: gemm(out=overlapping_windows())) == text


def test_out_in_the_memory_of_an_input() -> None:
    buffer = torch.zeros(3 * K, dtype=torch.bfloat16)
    x = buffer.view(3, K)
    bias = torch.zeros(4 * N, dtype=torch.bfloat16)
    table = torch.zeros(4096, dtype=torch.int32)
    payload = _payload.clone()
    cases = [
        ("x", {"x": x, "out": buffer[: 3 * N].view(3, N)}),
        ("x", {"x": x, "out": x[:, K - N - 1 : K - 1]}),
        ("payload", {"payload": payload, "out": out_inside(payload, 1536)}),
        ("escapes", {"escapes": table, "out": out_inside(table, 64)}),
        ("bias", {"bias": bias[N : 2 * N], "out": bias[: 3 * N].view(3, N)}),
    ]
    for name, changes in cases:
        assert text_of(lambda c=changes: gemm(**c)) == f"nf12::gemm: out shares memory with {name}"


# ---- pack, gather, check ------------------------------------------------------------------------

PACK: dict[str, tuple[Any, int, str]] = {
    "dtype": (torch.zeros(4, 4), -1, "weight has dtype float32, expected bfloat16"),
    "vector": (activations(4), -1, "weight has 1 dimensions, expected 2 or 3"),
    "rank-4": (activations(1, 1, 4, 4), -1, "weight has 4 dimensions, expected 2 or 3"),
    "no-rows": (activations(0, 4), -1, "weight is [0, 4], each size must be 1 .. 2147483647"),
    "no-experts": (
        activations(0, 4, 4),
        -1,
        "weight is [0, 4, 4], each size must be 1 .. 2147483647",
    ),
    "too-long": (
        activations(1, 1).expand(1, 1 << 31),
        -1,
        "weight is [1, 2147483648], each size must be 1 .. 2147483647",
    ),
    "base-low": (activations(4, 4), 95, "base is 95, expected 96 .. 128"),
    "base-high": (activations(4, 4), 129, "base is 129, expected 96 .. 128"),
    "base-negative": (activations(4, 4), -2, "base is -2, expected 96 .. 128"),
}


@pytest.mark.parametrize("case", PACK)
def test_bad_pack(case: str) -> None:
    weight, base, text = PACK[case]
    assert text_of(lambda: ops.pack(weight, base)) == "nf12::pack: " + text
    assert text_of(lambda: ops.pack(weight.to("meta"), base)) == "nf12::pack: " + text


def test_pack_with_a_base_that_loses_bits() -> None:
    subnormal = torch.full((16, 64), 2.0**-133, dtype=torch.bfloat16)
    text = text_of(lambda: ops.pack(subnormal, 128))
    assert text.startswith("nf12::pack: base 128 would lose bits of this weight")


def test_gather_of_ids_out_of_range() -> None:
    for dtype in (torch.int32, torch.int64):
        for bad in (N, -1, torch.iinfo(dtype).max, torch.iinfo(dtype).min):
            ids = torch.tensor([[0, 5], [N - 1, bad]], dtype=dtype)
            assert text_of(lambda ids=ids: ops.gather(ids, *packed())) == (
                f"nf12::gather: ids holds {bad} at position 3, "
                f"the packed weight has out_features {N}"
            )


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.float32, torch.bool], ids=str)
def test_gather_of_ids_of_another_dtype(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    text = f"nf12::gather: ids has dtype {name}, expected int32 or int64"
    ids = torch.zeros(2).to(dtype)
    assert text_of(lambda: ops.gather(ids, *packed())) == text
    meta = [to_meta(value) for value in packed()]
    assert text_of(lambda: ops.gather(ids.to("meta"), *meta)) == text


def test_check_of_another_version() -> None:
    text = text_of(lambda: ops.check(*packed(), 2))
    assert text == "nf12::check: meta: this library reads version 1: 2"


def test_check_of_a_meta_tensor() -> None:
    meta = [to_meta(value) for value in packed()]
    assert "runs eagerly only" in text_of(lambda: ops.check(*meta, 1))


# ---- what torch lets through --------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["x", "payload", "index", "escapes"])
def test_none_for_a_tensor(argument: str) -> None:
    assert text_of(lambda: gemm(**{argument: None})) == (
        f"nf12::gemm: {argument} is None, expected a tensor"
    )


def freed(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("argument", ["x", "payload", "index", "escapes", "bias", "out"])
def test_freed_storage_is_not_read(argument: str) -> None:
    whole = {**GOOD, "x": X, "bias": activations(N), "out": OUT}
    text = text_of(lambda: gemm(**{argument: freed(whole[argument])}))
    assert text.startswith(f"nf12::gemm: {argument} is [")
    assert text.endswith(", its storage has 0 bytes")


def test_freed_storage_is_not_packed_or_gathered() -> None:
    assert "weight is [4, 4]" in text_of(lambda: ops.pack(freed(activations(4, 4))))
    ids = freed(torch.tensor([1, 2]))
    assert "ids is [2]" in text_of(lambda: ops.gather(ids, *packed()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: X.to_sparse(),
        lambda: X.to_mkldnn(),
        lambda: torch.nested.nested_tensor([X[0], X[1]]),
    ],
    ids=["sparse", "mkldnn", "nested"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_without_strides_are_refused(make: Callable[[], Tensor]) -> None:
    with pytest.raises((NotImplementedError, RuntimeError), match="nf12::gemm"):
        ops.gemm(make(), *packed())


def test_results_past_memory_and_past_int64() -> None:
    x = activations(1, K).expand(1 << 44, K)
    text = text_of(lambda: ops.gemm(x, *packed()))
    assert f"nf12::gemm: cannot allocate memory for bfloat16 [{1 << 44}, {N}]" in text
    with pytest.raises(torch.OutOfMemoryError, match="cannot allocate memory"):
        nf12.gemm(x, nf12.PackedWeight.from_tensors(_named(), "w"))

    index = _index[:1, :1].expand(1 << 27, 1)
    payload = _payload[:1, :1].expand(1 << 27, 1, 1536)
    tall = packed(payload=payload, index=index, out_features=(1 << 31) - 1, in_features=1)
    x = activations(1, 1).expand(1 << 32, 1)
    text = text_of(lambda: ops.gemm(x, *tall))
    assert text == f"nf12::gemm: a result of shape [{1 << 32}, {(1 << 31) - 1}] is too large"


def _named() -> dict[str, Tensor]:
    meta = torch.tensor([1, N, K, BASE], dtype=torch.int32)
    return {"w_payload": _payload, "w_index": _index, "w_escapes": _escapes, "w_meta": meta}


def test_every_call_reports_a_bad_cpu_level() -> None:
    script = """
import torch, nf12
ops, zeros = torch.ops.nf12, torch.zeros
w = torch.ones(16, 64, dtype=torch.bfloat16)
p = zeros(1, 1, 1536, dtype=torch.uint8), zeros(1, 1).int(), zeros(0).int(), 16, 64, 112
calls = [(ops.gemm, w, *p), (ops.pack, w), (ops.unpack, *p), (ops.gather, zeros(1).int(), *p)]
for op, *arguments in calls * 2:
    try:
        op(*arguments)
    except RuntimeError as error:
        print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"NF12_CPU_LEVEL": "avx9"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    names = "portable, avx2, avx512, avx512_bf16, amx"
    assert result.stdout.splitlines() == [
        f"nf12::{op}: NF12_CPU_LEVEL is avx9, not one of {names}"
        for op in ("gemm", "pack", "unpack", "gather") * 2
    ]
