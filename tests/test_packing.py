"""The specification, the packed weight and the functions: every reader's rule refused by both
checks, arguments refused by both backends, and what a PackedWeight goes through."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import (
    GuardedBuffer,
    activations,
    all_patterns,
    assert_bits_equal,
    assert_gemm_close,
    bits,
    from_bits,
    realistic_weights,
    special_weights,
)
from torch import Tensor

import nf12
from nf12 import FormatError, PackedWeight, StaysDense, packing
from nf12.packing import TileCounts, check_spec, pack_spec, scale_bits

BACKENDS = ("cpu", "torch")


def pack(w: Tensor) -> PackedWeight:
    """Also where nf12.pack would say StaysDense: small cases are quick."""
    return PackedWeight(*torch.ops.nf12.pack(w))


# ---- scaling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [-16, -8, -7, -1, 0, 1, 7, 8, 16])
def test_scaling_is_multiplication_by_a_power_of_two(shift: int) -> None:
    values = all_patterns()
    scaled = from_bits(scale_bits(bits(values), shift))
    expected = values.double() * 2.0**shift
    exact = expected.bfloat16().double() == expected
    finite = values.isfinite()
    assert_bits_equal(scaled[exact & finite], expected.bfloat16()[exact & finite])
    assert_bits_equal(scaled[~finite], values[~finite], "Inf and NaN stay")
    back = scale_bits(scale_bits(bits(values), shift), -shift)
    assert torch.equal((back == bits(values))[finite], exact[finite]), "exact is what comes back"


# ---- the reader's rules -------------------------------------------------------------------------

# A weight of 3 x 2 tiles with 40 rows and 100 columns, so that tiles (2, *) and (*, 1) are partial.
# Tile (0, 0) is listed with 5 entries, (0, 1) raw, (1, 0) clean, (1, 1) listed, (2, 1) raw.
N, K, BASE = 40, 100, 110


def hostile_ground() -> dict[str, Any]:
    w = torch.full((N, K), 2.0**-8).bfloat16()
    w[0, [1, 5, 9]] = torch.tensor([0.0, -0.0, float("inf")]).bfloat16()
    w[3, 0], w[15, 63] = from_bits([0x0048, 0xFFFF])  # subnormal, NaN; 110 shifts left by 2
    w[:16, 64:] = 0
    w[20, 70] = 1e30
    w[32:, 64:] = 0
    w[39, 99] = -0.0
    payload, index, escapes, _ = pack_spec(w, BASE)
    assert (index & 0xFF).tolist() == [[5, 255], [0, 1], [0, 255]]
    return {
        "payload": payload, "index": index, "escapes": escapes,
        "out_features": N, "in_features": K, "base": BASE, "version": 1,
    }  # fmt: skip


def entry(position: int, value: int) -> int:
    return position << 16 | value


def set_word(r: int, c: int, word: int) -> Callable[[dict[str, Any]], None]:
    def change(p: dict[str, Any]) -> None:
        p["index"][r, c] = word

    return change


def set_entry(tile: tuple[int, int], at: int, value: int) -> Callable[[dict[str, Any]], None]:
    def change(p: dict[str, Any]) -> None:
        quad = int(p["index"][tile]) >> 8
        p["escapes"][4 * quad + at] = value

    return change


def set_byte(tile: tuple[int, int], at: int, value: int) -> Callable[[dict[str, Any]], None]:
    def change(p: dict[str, Any]) -> None:
        p["payload"][tile][at] = value

    return change


def replace(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda p: p.update(fields)


def quads_of(p: dict[str, Any]) -> int:
    return len(p["escapes"]) // 4


RULES: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    # what breaks: (the tensor that the error names, the change)
    "version": ("meta", replace(version=2)),
    "version 0": ("meta", replace(version=0)),
    "base below": ("meta|base", replace(base=95)),
    "base above": ("meta|base", replace(base=129)),
    "no rows": ("meta|out_features", replace(out_features=0)),
    "negative columns": ("meta|in_features", replace(in_features=-1)),
    "rows": ("payload", replace(out_features=49)),
    "fewer rows": ("payload", replace(out_features=32)),
    "columns": ("payload", replace(in_features=129)),
    "fewer columns": ("payload", replace(in_features=64)),
    "payload dtype": ("payload", lambda p: p.update(payload=p["payload"].to(torch.int8))),
    "index dtype": ("index", lambda p: p.update(index=p["index"].long())),
    "escapes dtype": ("escapes", lambda p: p.update(escapes=p["escapes"].float())),
    "tile bytes": ("payload", lambda p: p.update(payload=p["payload"][..., :1024])),
    "payload rank": ("payload", lambda p: p.update(payload=p["payload"].flatten(0, 1))),
    "index shape": ("index", lambda p: p.update(index=p["index"][:, :1])),
    "escapes rank": ("escapes", lambda p: p.update(escapes=p["escapes"].view(-1, 4))),
    "escapes length": ("escapes", lambda p: p.update(escapes=p["escapes"][:-1])),
    "count 65": ("index", set_word(1, 0, 65)),
    "count 254": ("index", set_word(1, 0, 254)),
    "clean word": ("index", set_word(1, 0, 1 << 8)),
    "quad past the end": ("index", lambda p: set_word(1, 1, quads_of(p) << 8 | 1)(p)),
    "list runs out": ("index", lambda p: set_word(1, 1, quads_of(p) - 1 << 8 | 5)(p)),
    "raw runs out": ("index", lambda p: set_word(2, 1, quads_of(p) - 127 << 8 | 255)(p)),
    "largest quad": ("index", set_word(1, 1, -256 | 1)),
    "no table": ("index", lambda p: p.update(escapes=p["escapes"][:0])),
    "spare bit 26": ("escapes", set_entry((0, 0), 0, entry(1, 0) | 1 << 26)),
    "spare bit 31": ("escapes", set_entry((0, 0), 0, entry(1, 0) - (1 << 31))),
    "positions equal": ("escapes", set_entry((0, 0), 1, entry(1, 0))),
    "positions descend": ("escapes", set_entry((0, 0), 2, entry(4, 0))),
    "filler": ("escapes", set_entry((0, 0), 7, entry(1023, 0))),
    "in the padding": ("escapes", set_entry((1, 1), 0, entry(64 * 4 + 36, 0))),
    "inside the window": ("escapes", set_entry((0, 0), 2, entry(9, 112 << 7))),
    "top of the window": ("escapes", set_entry((0, 0), 2, entry(9, 127 << 7 | 127))),
    # base 110 scales back by 2^-2: a subnormal's last two bits go
    "inexact": ("escapes", set_entry((0, 0), 2, entry(9, 0x0041))),
    "raw inexact": ("escapes", set_entry((0, 1), 0, 0x0002)),
    "raw padding": ("escapes", set_entry((0, 1), 511, 1 << 16)),
    "raw padding is -0": ("escapes", set_entry((2, 1), 8 * 32, 0x8000)),
    "payload at a column of padding": ("payload", set_byte((1, 1), 36, 1)),
    "code in a row of padding": ("payload", set_byte((2, 0), 1024 + 32 * 8, 0x10)),
    "payload of an escape": ("payload", set_byte((0, 0), 1, 0x80)),
    "code of an escape": ("payload", set_byte((0, 0), 1024 + 2, 0x01)),
    "payload of a raw tile": ("payload", set_byte((0, 1), 0, 1)),
    "code of a raw tile": ("payload", set_byte((2, 1), 1535, 0xF0)),
}  # fmt: skip


def run_check(check: str, p: dict[str, Any]) -> None:
    if check == "torch":
        check_spec(**p)
    else:
        from nf12.packed_weight import check as run

        run(**p)


@pytest.mark.parametrize("check", BACKENDS)
@pytest.mark.parametrize("experts", [False, True], ids=["one", "stack"])
def test_the_ground_for_hostile_changes_is_valid(check: str, experts: bool) -> None:
    p = hostile_ground()
    if experts:
        p |= {"payload": p["payload"].expand(3, -1, -1, -1), "index": p["index"].expand(3, -1, -1)}
    run_check(check, p)


@pytest.mark.parametrize("check", BACKENDS)
@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_refused(check: str, rule: str) -> None:
    tensor, change = RULES[rule]
    p = hostile_ground()
    change(p)
    with pytest.raises(FormatError, match=f"^nf12::check: .*({tensor})"):
        run_check(check, p)


@pytest.mark.parametrize("check", BACKENDS)
def test_the_error_names_the_place_in_a_stack(check: str) -> None:
    p = hostile_ground()
    p |= {"payload": torch.stack([p["payload"]] * 3), "index": torch.stack([p["index"]] * 3)}
    p["index"][2, 1, 0] = 77
    with pytest.raises(FormatError, match=r"index: .*0x4d.*expert 2.*tile.*1, 0"):
        run_check(check, p)


@given(data=st.data())
def test_one_flipped_bit_is_refused_or_decodes_alike(data: st.DataObject) -> None:
    """Both checks agree on every single-bit change, both decoders on what passes."""
    p = hostile_ground()
    name = data.draw(st.sampled_from(["payload", "index", "escapes"]))
    flat = p[name].flatten()
    at = data.draw(st.integers(0, len(flat) - 1))
    bit = data.draw(st.integers(0, 7 if name == "payload" else 31))
    flat[at] ^= (1 << bit) - ((1 << 32) if bit == 31 else 0)
    p[name] = flat.view_as(p[name])
    refused = []
    for check in BACKENDS:
        try:
            run_check(check, p)
        except FormatError:
            refused.append(check)
    assert refused in ([], list(BACKENDS)), (name, at, bit)
    if not refused:
        del p["version"]
        assert_bits_equal(torch.ops.nf12.unpack(**p), packing.unpack_spec(**p))


@given(
    seed=st.integers(0, 2**31), words=st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6)
)
def test_unchecked_garbage_stays_within_the_table(seed: int, words: list[int]) -> None:
    """Whatever index and table hold, the specification reads inside them and returns a shape."""
    g = torch.Generator().manual_seed(seed)
    p = hostile_ground()
    p["payload"] = torch.randint(0, 256, p["payload"].shape, generator=g, dtype=torch.uint8)
    p["index"] = torch.tensor(words).int().view(3, 2)
    p["escapes"] = torch.randint(-(2**31), 2**31, (8,), generator=g).int()
    del p["version"]
    assert packing.unpack_spec(**p).shape == (N, K)
    assert packing.gather_spec(torch.tensor([0, 39]), **p).shape == (2, K)


# ---- PackedWeight -------------------------------------------------------------------------------


def test_attributes() -> None:
    w = realistic_weights(100, 200, escape_rate=0.01, tile_share=0.5)
    w[:16, :64] = 0
    packed = pack(w)
    assert (packed.out_features, packed.in_features, packed.num_experts) == (100, 200, None)
    assert packed.shape == w.shape and packed.dtype == w.dtype and packed.device == w.device
    assert packed.version == 1 and packed.meta.tolist() == [1, 100, 200, packed.base]
    assert packed.dense_nbytes == w.nbytes
    tensors = packed.tensors("a.b")
    assert list(tensors) == ["a.b_payload", "a.b_index", "a.b_escapes", "a.b_meta"]
    assert packed.nbytes == sum(t.nbytes for t in tensors.values())
    assert packed.bits_per_weight == 8 * packed.nbytes / w.numel()
    exponent = bits(w) >> 7 & 0xFF
    outside = (exponent < packed.base) | (exponent > packed.base + 15)
    assert packed.num_escapes == int(outside.sum())
    counts = packed.tile_counts
    assert counts.raw == 1 and counts.listed > 0 and counts.clean > 0
    assert counts == TileCounts(7 * 4 - 1 - counts.listed, counts.listed, 1)
    assert "100 x 200" in repr(packed) and f"base={packed.base}" in repr(packed)


def test_stack_attributes() -> None:
    w = special_weights(3, 100, 200, share=0.1)
    packed = pack(w)
    assert packed.num_experts == 3 and packed.shape == w.shape
    assert packed.bits_per_weight == 8 * packed.nbytes / w.numel()
    exponent = bits(w) >> 7 & 0xFF
    outside = (exponent < packed.base) | (exponent > packed.base + 15)
    assert packed.num_escapes == int(outside.sum())


def test_operands_feed_the_operators() -> None:
    w, x = realistic_weights(100, 200), activations(4, 200)
    packed = pack(w)
    assert_gemm_close(torch.ops.nf12.gemm(x, *packed.operands, None), x, w)
    assert_bits_equal(torch.ops.nf12.unpack(*packed.operands), w)


def test_immutable() -> None:
    packed = pack(realistic_weights(32, 64))
    with pytest.raises(AttributeError, match="immutable"):
        packed.base = 100
    with pytest.raises(AttributeError, match="immutable"):
        del packed.payload


def roundtrip_torch_save(packed: PackedWeight) -> PackedWeight:
    file = io.BytesIO()
    torch.save(packed, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert isinstance(loaded, PackedWeight)
    return loaded


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda p: pickle.loads(pickle.dumps(p)),
        roundtrip_torch_save,
        PackedWeight.clone,
        lambda p: p.to("cpu"),
        lambda p: PackedWeight.from_tensors(p.tensors("w"), "w"),
    ],
    ids=["deepcopy", "pickle", "torch.save", "clone", "to", "tensors"],
)
@pytest.mark.parametrize("shape", [(50, 100), (2, 50, 100)], ids=str)
def test_copies(copied: Callable[[PackedWeight], PackedWeight], shape: tuple[int, ...]) -> None:
    w = special_weights(*shape)
    packed = pack(w)
    other = copied(packed)
    assert other.operands[3:] == packed.operands[3:]
    assert_bits_equal(other.unpack(), w)


def test_pickled_slices_are_checked_and_whole() -> None:
    part = pack(special_weights(64, 256)).slice_columns(64, 192)
    assert_bits_equal(pickle.loads(pickle.dumps(part)).unpack(), part.unpack())


def test_a_manipulated_pickle_is_refused() -> None:
    packed = pack(realistic_weights(32, 64))
    build, (payload, index, escapes, meta) = packed.__reduce__()
    with pytest.raises(FormatError, match="index"):
        build(payload, index + 77, escapes, meta)


def test_from_tensors_names_the_weight() -> None:
    tensors = pack(realistic_weights(32, 64)).tensors("layers.0.q.weight")
    del tensors["layers.0.q.weight_index"]
    with pytest.raises(
        FormatError, match=r"layers\.0\.q\.weight: .*lacks layers\.0\.q\.weight_index"
    ):
        PackedWeight.from_tensors(tensors, "layers.0.q.weight")
    tensors = pack(realistic_weights(32, 64)).tensors("v")
    tensors["v_meta"][0] = 9
    with pytest.raises(FormatError, match=r"^v: nf12::check: .*9"):
        PackedWeight.from_tensors(tensors, "v")


@pytest.mark.parametrize(
    "meta",
    [torch.zeros(3).int(), torch.zeros(4), torch.zeros(1, 4).int()],
    ids=["3", "float", "2-D"],
)
def test_meta_is_four_integers(meta: Tensor) -> None:
    packed = pack(realistic_weights(32, 64))
    with pytest.raises(FormatError, match=r"meta: must be int32 \[4\]"):
        PackedWeight(*packed.operands[:3], meta)


@pytest.mark.parametrize(
    ("slicer", "start", "stop", "text"),
    [
        ("slice_rows", 8, 32, "row start is 8, must be a multiple of 16"),
        ("slice_rows", 0, 20, "row stop is 20, must be a multiple of 16 or 50"),
        ("slice_rows", 32, 32, "rows 32..32 are not within 0..50"),
        ("slice_rows", 0, 64, "rows 0..64 are not within 0..50"),
        ("slice_columns", 32, 100, "column start is 32, must be a multiple of 64"),
        ("slice_columns", 0, 96, "column stop is 96"),
        ("slice_experts", 0, 1, r"shape \[50, 100\] has no experts"),
    ],
)
def test_slices_between_tiles_are_refused(slicer: str, start: int, stop: int, text: str) -> None:
    packed = pack(realistic_weights(50, 100))
    with pytest.raises(ValueError, match=text):
        getattr(packed, slicer)(start, stop)


# ---- functions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_pack_refuses(backend: str) -> None:
    ones = torch.ones(32, 64, dtype=torch.bfloat16)
    for weight, error, text in (
        ([1.0], TypeError, "list, expected a torch.Tensor"),
        (ones.float(), TypeError, "float32, expected bfloat16; cast=True"),
        (ones.half(), TypeError, "float16, expected bfloat16; cast=True"),
        (ones.double(), TypeError, "float64, expected bfloat16$"),
        (ones.int(), TypeError, "int32, expected bfloat16$"),
        (ones[0], ValueError, r"\[64\], expected a non-empty"),
        (ones.view(2, 2, 8, 64), ValueError, r"\[2, 2, 8, 64\], expected a non-empty"),
        (ones[:0], ValueError, r"\[0, 64\], expected a non-empty"),
        (ones.to("meta"), ValueError, "meta device"),
    ):
        with pytest.raises(error, match=text):
            nf12.pack(weight, backend=backend)  # type: ignore[arg-type]
    for base in (0, 95, 129, -2):
        with pytest.raises(ValueError, match=f"base is {base}, expected 96 .. 128"):
            nf12.pack(ones, base=base, backend=backend)
    ones[0, 0] = 1e38
    with pytest.raises(ValueError, match="base 96 would lose bits"):
        nf12.pack(ones, base=96, backend=backend)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_cast_rounds_and_reports_the_worst_error(dtype: torch.dtype) -> None:
    w = (torch.randn(128, 256) * 0.02).to(dtype)
    w[3, 4], w[5, 6], w[0, 0] = 1.0 + 2**-9, float("nan"), float("inf")
    packed = nf12.pack(w, cast=True)
    assert isinstance(packed, PackedWeight)
    assert_bits_equal(packed.unpack(), w.bfloat16())
    assert packed.cast is not None and packed.cast.source_dtype == dtype
    finite = w.isfinite()
    error = (w.double() - w.bfloat16().double()).abs()[finite]
    assert packed.cast.max_abs_error == float(error.max())
    nonzero = w[finite] != 0
    assert packed.cast.max_rel_error == float((error / w[finite].double().abs())[nonzero].max())
    packed = nf12.pack(w.bfloat16(), cast=True)
    assert isinstance(packed, PackedWeight) and packed.cast is None, "BF16 needs no cast"


def test_pack_detaches_parameters() -> None:
    packed = nf12.pack(torch.nn.Parameter(realistic_weights(32, 64)))
    assert isinstance(packed, PackedWeight)
    assert not packed.unpack().requires_grad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(64,), (0, 64), (3, 64), (2, 3, 64), (2, 0, 64)], ids=str)
def test_gemm_shapes(backend: str, shape: tuple[int, ...]) -> None:
    w, bias = realistic_weights(50, 64), activations(50, seed=3)
    packed = pack(w)
    x = activations(*shape)
    for b in (None, bias):
        assert_gemm_close(nf12.gemm(x, packed, b, backend=backend), x, w, b)


def test_torch_backend_rounds_once_on_a_cpu() -> None:
    """With a bias that cancels the product, rounding it first would leave no correct bit."""
    w, x = realistic_weights(64, 512, base=112), activations(8, 512)
    bias = -(x[:1].double() @ w.double().T)[0].bfloat16()
    y = nf12.gemm(x, pack(w), bias, backend="torch")
    assert_gemm_close(y, x, w, bias)
    twice_rounded = (x.double() @ w.double().T).bfloat16() + bias
    with pytest.raises(AssertionError, match="outside the bound"):
        assert_gemm_close(twice_rounded, x, w, bias)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gemm_and_gather_refuse(backend: str) -> None:
    packed = pack(realistic_weights(50, 100))
    stack = pack(realistic_weights(2, 50, 100))
    x = activations(3, 100)
    ids = torch.tensor([1])
    cases: list[tuple[Callable[[], Tensor], type[Exception], str]] = [
        (lambda: nf12.gemm(x.float(), packed, backend=backend), TypeError, "x has dtype float32"),
        (lambda: nf12.gemm(x.half(), packed, backend=backend), TypeError, "x has dtype float16"),
        (lambda: nf12.gemm(x, packed, torch.ones(50), backend=backend), TypeError, "bias has"),
        (lambda: nf12.gemm(x[:, :99], packed, backend=backend), ValueError,
         "x has 99 columns, the packed weight has in_features 100"),
        (lambda: nf12.gemm(x[0, 0], packed, backend=backend), ValueError, "x has 0 dimensions"),
        (lambda: nf12.gemm(x, packed, x[0], backend=backend), ValueError,
         r"bias is \[100\], the packed weight has out_features 50"),
        (lambda: nf12.gemm(x, packed, x[:, :50], backend=backend), ValueError,
         r"bias is \[3, 50\]"),
        (lambda: nf12.gemm(x, stack, backend=backend), ValueError, "payload has 4 dimensions"),
        (lambda: nf12.gather(ids, stack, backend=backend), ValueError, "payload has 4 dimensions"),
        (lambda: nf12.gather(ids.float(), packed, backend=backend), TypeError,
         "ids has dtype float32, expected int32 or int64"),
        (lambda: nf12.gather(ids.bool(), packed, backend=backend), TypeError, "ids has dtype bool"),
        (lambda: nf12.gather(ids * 50, packed, backend=backend), IndexError,
         "ids holds 50 at position 0, the packed weight has out_features 50"),
        (lambda: nf12.gather(torch.tensor([[0, 3], [-1, 2]]), packed, backend=backend), IndexError,
         "ids holds -1 at position 2"),
    ]  # fmt: skip
    for call, error, text in cases:
        with pytest.raises(error, match=text):
            call()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3), (2, 0)], ids=str)
def test_gather_shapes(backend: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    w = special_weights(50, 100, share=0.05)
    ids = torch.randint(0, 50, shape, dtype=dtype)
    rows = nf12.gather(ids, pack(w), backend=backend)
    assert_bits_equal(rows, w[ids.long()].contiguous())


def test_gather_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    w = special_weights(50, 100, share=0.05)
    ids = torch.randint(0, 50, (33,))
    monkeypatch.setattr(packing, "SLICE_WEIGHTS", 1024)
    assert_bits_equal(nf12.gather(ids, pack(w), backend="torch"), w[ids])


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend: str) -> None:
    w, dy = realistic_weights(50, 100), activations(2, 3, 50, seed=5)
    x = activations(2, 3, 100).requires_grad_()
    bias = activations(50, seed=2).requires_grad_()
    y = nf12.gemm(x, pack(w), bias, backend=backend)
    y.backward(dy)
    assert x.grad is not None and bias.grad is not None
    assert_gemm_close(x.grad, dy, w.T.contiguous())
    expected = dy.double().flatten(0, 1).sum(0)
    torch.testing.assert_close(bias.grad.double(), expected, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_one_row_and_of_bias_alone(backend: str) -> None:
    packed, x = pack(realistic_weights(50, 100)), activations(100)
    bias = activations(50, seed=2).requires_grad_()
    nf12.gemm(x, packed, bias, backend=backend).sum().backward()
    assert bias.grad is not None and torch.equal(bias.grad, torch.ones(50).bfloat16())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("grad", [False, True])
def test_autocast_casts_x_to_bf16(backend: str, grad: bool) -> None:
    w, x = realistic_weights(50, 100), activations(4, 100).float().requires_grad_(grad)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = nf12.gemm(x, pack(w), backend=backend)
    assert_gemm_close(y.detach(), x.detach().bfloat16(), w)
    if grad:
        y.sum().backward()
        assert x.grad is not None and x.grad.dtype == torch.float32


def test_kernels_by_name() -> None:
    w, x = realistic_weights(64, 256), activations(3, 256)
    packed = pack(w)
    for name in nf12.info()["cpu"]["supported"]:
        assert_gemm_close(nf12.gemm(x, packed, kernel=name), x, w, what=name)
        with nf12.use_kernel(name):
            assert_gemm_close(nf12.gemm(x, packed), x, w, what=name)
    with pytest.raises(ValueError, match="nonesuch"):
        nf12.gemm(x, packed, kernel="nonesuch")
    with pytest.raises(ValueError, match="torch has no kernel 'portable', must be one of auto"):
        nf12.gemm(x, packed, backend="torch", kernel="portable")


def test_use_kernel_nests_and_restores() -> None:
    from nf12.backend import introspection

    c = introspection()
    with nf12.use_kernel("portable"):
        with nf12.use_kernel(c.supported_cpu_levels()[-1]):
            assert c.kernel_override() == c.supported_cpu_levels()[-1]
        assert c.kernel_override() == "portable"
        with pytest.raises(ZeroDivisionError), nf12.use_kernel("portable"):
            raise ZeroDivisionError
    assert c.kernel_override() is None


def test_select_shows_the_choice() -> None:
    chosen = nf12.select(1, 4096, 4096)
    assert chosen.backend is nf12.Backend.CPU
    assert chosen.kernel in nf12.info()["cpu"]["supported"]
    with nf12.use_kernel("portable"):
        assert nf12.select(1, 4096, 4096) == chosen, "overrides aside"
    assert nf12.select(1, 64, 64, "meta").kernel == "torch"


def test_stays_dense_says_why() -> None:
    small = nf12.pack(torch.ones(3, 5).bfloat16())
    assert isinstance(small, StaysDense)
    assert small.dense_bytes == 30 and small.packed_bytes == 1536 + 4 + 16
    assert "3 x 5" in small.reason and "1556" in small.reason and "30" in small.reason


# ---- the tools of the tests themselves ----------------------------------------------------------


def test_guarded_buffer_finds_what_it_guards_against() -> None:
    for break_it, text in (
        (lambda b: b.view[1:].zero_(), "8 elements of the output were not written"),
        (lambda b: b.storage[3:].zero_(), "outside the output"),
    ):
        buffer = GuardedBuffer.create(3, 8)
        break_it(buffer)
        with pytest.raises(AssertionError, match=text):
            buffer.check()
    buffer = GuardedBuffer.create(3, 8)
    buffer.view.zero_()
    buffer.check()


def test_bits_comparison_sees_signs_of_zero_and_nan_payloads() -> None:
    for a, b in ((0x0000, 0x8000), (0x7FC0, 0x7FC1)):
        with pytest.raises(AssertionError, match=r"1 of 2 differ, first at \(1,\): "):
            assert_bits_equal(from_bits([1, a]), from_bits([1, b]))
        assert_bits_equal(from_bits([a, b]), from_bits([a, b]))
