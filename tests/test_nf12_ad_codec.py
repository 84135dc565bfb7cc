"""The codec: every BF16 pattern comes back bit for bit, and the Python specification and the C++
kernels write the same bytes. Everything is compared as integers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import (
    activations,
    all_patterns,
    assert_bits_equal,
    assert_gemm_close,
    bits,
    from_bits,
    offset_rows,
    realistic_weights,
    special_weights,
)
from torch import Tensor

import nf12
from nf12 import packing
from nf12.packing import MAX_BASE, MIN_BASE, NEUTRAL_BASE, Operands, check_spec, pack_spec

PARTS = ("payload", "index", "escapes", "meta")
BACKENDS = ("cpu", "torch")
SHAPES = [
    (1, 1), (1, 64), (16, 1), (16, 64), (17, 65), (15, 63), (33, 200), (100, 130), (1, 1000),
    (300, 3), (1, 16, 64), (3, 17, 65), (5, 2, 2),
]  # fmt: skip


def pack_both(w: Tensor, base: int = -1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Packs with C++ and with the specification and holds the bytes of the two together."""
    expected = pack_spec(w, base)
    actual = torch.ops.nf12.pack(w, base)
    for name, a, e in zip(PARTS, actual, expected, strict=True):
        assert_bits_equal(a, e, name)
    return expected


def operands(packed: tuple[Tensor, Tensor, Tensor, Tensor]) -> Operands:
    payload, index, escapes, meta = packed
    _, n, k, base = meta.tolist()
    return payload, index, escapes, n, k, base


def assert_round_trip(w: Tensor, base: int = -1) -> Operands:
    """Equal bytes, valid by both checks, and exact through unpack and gather of both backends."""
    packed = operands(pack_both(w, base))
    torch.ops.nf12.check(*packed, packing.FORMAT_VERSION)
    check_spec(*packed, packing.FORMAT_VERSION)
    assert_bits_equal(torch.ops.nf12.unpack(*packed), w.contiguous(), "cpu unpack")
    assert_bits_equal(packing.unpack_spec(*packed), w.contiguous(), "torch unpack")
    if w.dim() == 2:
        ids = torch.arange(w.shape[0]).flip(0)
        assert_bits_equal(torch.ops.nf12.gather(ids, *packed), w[ids], "cpu gather")
        assert_bits_equal(packing.gather_spec(ids, *packed), w[ids], "torch gather")
    return packed


# ---- all patterns -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(256, 256), (1, 65536), (65536, 1), (64, 4, 256)], ids=str)
def test_all_patterns_as_one_tensor(shape: tuple[int, ...]) -> None:
    assert_round_trip(all_patterns().view(shape))


@pytest.mark.parametrize("base", [96, 111, 128])
def test_all_patterns_mixed_into_ordinary_weights(base: int) -> None:
    """One of 8 weights is any pattern, among weights that would have another window."""
    w = realistic_weights(512, 1024, base=base, seed=base).flatten()
    at = torch.randperm(w.numel(), generator=torch.Generator().manual_seed(base))[: 1 << 16]
    w[at] = all_patterns()
    *_, chosen = assert_round_trip(w.view(512, 1024))
    assert chosen == NEUTRAL_BASE, "every pattern is only exact unscaled"


@pytest.mark.parametrize("base", [96, 97, 104, 111, 113, 116, 127, 128])
def test_every_pattern_that_a_base_can_hold(base: int) -> None:
    """The patterns exact under a window's scale, forced into it, beside ordinary weights."""
    shift = NEUTRAL_BASE - base
    scaled = packing.scale_bits(bits(all_patterns()), shift)
    fits = packing.scale_bits(scaled, -shift) == bits(all_patterns())
    normal_to_subnormal = (bits(all_patterns()) & 0x7F80 != 0) & (scaled & 0x7F80 == 0)
    zero = bits(all_patterns()) & 0x7FFF == 0
    chosen = all_patterns()[fits & ~(normal_to_subnormal & ~zero)]
    assert len(chosen) > 58000
    w = realistic_weights(256, 256, base=base, seed=base).flatten()
    w[: len(chosen)] = chosen
    assert_round_trip(w.view(256, 256), base)


def test_each_pattern_alone_in_a_tile() -> None:
    """4096 tiles with 16 different patterns each: every pattern as a listed escape or in window."""
    w = realistic_weights(4096 * 16, 64, escape_rate=0.0, base=112).view(4096, 1024)
    w[:, ::64] = all_patterns().view(4096, 16)
    packed = assert_round_trip(w.view(4096 * 16, 64))
    counts = packed[1] & 0xFF
    assert int(counts.max()) <= 16


# ---- properties ---------------------------------------------------------------------------------

shapes = st.one_of(
    st.tuples(st.integers(1, 50), st.integers(1, 200)),
    st.tuples(st.integers(1, 4), st.integers(1, 34), st.integers(1, 130)),
)


@given(
    shape=shapes,
    share=st.sampled_from([0.0, 0.001, 0.02, 0.06, 0.0625, 0.07, 0.5, 1.0]),
    seed=st.integers(0, 2**31),
    finite=st.booleans(),
)
def test_any_shape_with_any_values(
    shape: tuple[int, ...], share: float, seed: int, finite: bool
) -> None:
    assert_round_trip(special_weights(*shape, share=share, seed=seed, finite=finite))


@given(shape=shapes, patterns=st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=6))
def test_few_distinct_values(shape: tuple[int, ...], patterns: list[int]) -> None:
    """Repeated tiles: clean, listed and shared raw ones."""
    numel = torch.Size(shape).numel()
    w = from_bits(torch.tensor(patterns).repeat(-(-numel // len(patterns)))[:numel])
    assert_round_trip(w.view(shape))


@given(base=st.integers(MIN_BASE, MAX_BASE), seed=st.integers(0, 2**31))
def test_any_base_is_taken_or_refused_by_both(base: int, seed: int) -> None:
    w = special_weights(40, 100, share=0.01, seed=seed, finite=True)
    try:
        pack_spec(w, base)
    except ValueError as error:
        assert "would lose bits" in str(error)
        with pytest.raises(RuntimeError, match="would lose bits"):
            torch.ops.nf12.pack(w, base)
    else:
        assert_round_trip(w, base)


# ---- how the same weight may come ---------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    assert_round_trip(special_weights(*shape, share=0.05))


def test_strided_sources() -> None:
    dense = special_weights(3, 50, 130)
    sources = {
        "offset rows": offset_rows(dense),
        "transposed": dense.transpose(1, 2).contiguous().transpose(1, 2),
        "experts permuted": dense.permute(1, 0, 2).contiguous().permute(1, 0, 2),
        "every second column": torch.stack((dense, dense), -1).flatten(2)[..., ::2],
        "sliced": torch.nn.functional.pad(dense, (1, 2, 3, 4))[:, 3:-4, 1:-2],
    }
    expected = pack_spec(dense)
    for name, source in sources.items():
        assert source.shape == dense.shape and not source.is_contiguous(), name
        for packer in (pack_spec, torch.ops.nf12.pack):
            for part, a, e in zip(PARTS, packer(source), expected, strict=True):
                assert_bits_equal(a, e, f"{name} {part}")


def test_expanded_experts_share_raw_tiles() -> None:
    w = special_weights(32, 128, share=1.0)
    one, three = pack_both(w), pack_both(w.expand(3, -1, -1))
    assert (one[1] & 0xFF == 255).all()
    assert_bits_equal(three[2], one[2], "escapes")
    assert_bits_equal(three[1], one[1].expand(3, -1, -1), "index")


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bytes_do_not_depend_on_threads(threads: int) -> None:
    w = special_weights(700, 300, share=0.05)
    w[100:400] = 0  # many shared raw tiles
    torch.set_num_threads(threads)
    pack_both(w)


def test_bytes_do_not_depend_on_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    w = special_weights(3, 100, 200, share=0.05)
    w[1, 30:90] = 0
    w[2] = w[0]
    whole = pack_spec(w)
    for tiles in (1, 5, 30, 100):
        monkeypatch.setattr(packing, "SLICE_WEIGHTS", 1024 * tiles)
        for part, a, e in zip(PARTS, pack_spec(w), whole, strict=True):
            assert_bits_equal(a, e, f"{tiles} tiles a slice, {part}")
        assert_round_trip(w)


@pytest.mark.usefixtures("flush_denormal")
def test_flush_to_zero_mode_touches_nothing() -> None:
    assert float(torch.tensor(1e-39) * 1.0) == 0.0, "the mode is on"
    assert_round_trip(all_patterns().view(256, 256))
    w = special_weights(64, 256, share=0.03, finite=True)
    assert_round_trip(w)


# ---- tiles of every kind ------------------------------------------------------------------------


@pytest.mark.parametrize("escapes", [0, 1, 3, 4, 5, 63, 64, 65, 66, 1023, 1024])
def test_escapes_of_a_tile(escapes: int) -> None:
    w = torch.ones(16, 64, dtype=torch.bfloat16).flatten()
    w[torch.randperm(1024)[:escapes]] = -0.0
    _, index, table, _ = pack_both(w.view(16, 64), 112)
    count, quad = int(index & 0xFF), int(index >> 8)
    assert quad == 0
    if escapes <= 64:
        assert (count, len(table)) == (escapes, -(-escapes // 4) * 4)
    else:
        assert (count, len(table)) == (255, 512)
    assert_round_trip(w.view(16, 64), 112)


def test_equal_raw_tiles_take_the_earliest_quad() -> None:
    """Tiles A, listed, B, A, clean, B, A in two experts: the table holds A, the list, B."""
    ones = torch.ones(16, 64, dtype=torch.bfloat16)
    a, b, listed = ones * 0, ones * 0, ones.clone()
    b[3, 5] = float("nan")
    listed[0, 0] = 0
    w = torch.stack([torch.cat(t, 1) for t in ([a, listed, b, a], [ones, b, a, a])])
    _, index, escapes, _ = pack_both(w, 112)
    quads = (index >> 8).flatten().tolist()
    assert (index & 0xFF).flatten().tolist() == [255, 1, 255, 255, 0, 255, 255, 255]
    assert quads == [0, 128, 129, 0, 0, 129, 0, 0]
    assert len(escapes) == 4 * (128 + 1 + 128)
    assert_round_trip(w, 112)


def test_raw_tiles_that_differ_in_the_sign_of_a_zero_are_two() -> None:
    w = torch.zeros(32, 64, dtype=torch.bfloat16)
    w[31, 63] = -0.0
    assert len(pack_both(w)[2]) == 2 * 512
    assert_round_trip(w)


def test_padding_of_a_shared_raw_tile_is_zero() -> None:
    """A full tile of zeros equals a partial one: padding is +0."""
    w = torch.zeros(22, 90, dtype=torch.bfloat16)
    assert (pack_both(w)[1] >> 8).tolist() == [[0, 0], [0, 0]]
    assert_round_trip(w)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("base", [96, 112, 128])
def test_window_edges(base: int, sign: int) -> None:
    """Exponents base - 1, base, base + 15, base + 16 with smallest and largest mantissa."""
    exponents = [base - 1, base, base + 15, base + 16]
    values = from_bits([e << 7 | m for e in exponents for m in (0, 127)]) * sign
    w = values.repeat(16, 8)
    _, index, escapes, _ = pack_both(w, base)
    assert int(index) == 255, "half of the weights lie outside"
    w = torch.full((16, 64), 2.0 ** (base - 127) * sign).bfloat16()
    w[7, 8:16] = values
    _, index, escapes, _ = pack_both(w, base)
    assert int(index) == 4
    assert (escapes >> 16).tolist() == [64 * 7 + c for c in (8, 9, 14, 15)]
    assert_round_trip(w, base)


# ---- the base -----------------------------------------------------------------------------------


def brute_force_base(w: Tensor) -> int:
    """The rule of the format, literally, in floating point."""
    candidates = []
    exponent = bits(w) >> 7 & 0xFF
    for base in range(MIN_BASE, MAX_BASE + 1):
        outside = (exponent < base) | (exponent > base + 15)
        escapes = w[outside & w.isfinite() & (w != 0)].double()
        scaled = escapes * 2.0 ** (112 - base)
        exact = scaled.bfloat16().double() == scaled
        stays_normal = (scaled.abs() >= 2.0**-126) | (escapes.abs() < 2.0**-126)
        if bool((exact & stays_normal).all()):
            candidates.append((int(outside.sum()), abs(base - 112), base))
    return min(candidates)[2]


@given(
    center=st.integers(90, 150),
    spread=st.integers(0, 24),
    extra=st.lists(st.integers(0, 0xFFFF), max_size=3),
    seed=st.integers(0, 2**31),
)
def test_the_base_follows_the_rule(center: int, spread: int, extra: list[int], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    exponent = torch.randint(center - spread, center + spread + 1, (256,), generator=g).clamp(
        0, 254
    )
    w = from_bits(exponent << 7 | torch.randint(0, 128, (256,), generator=g))
    w[: len(extra)] = from_bits(extra) if extra else w[:0]
    assert pack_both(w.view(4, 64))[3][3] == brute_force_base(w)


@pytest.mark.parametrize(("mantissa", "zeros"), [(0x40, 6), (0x48, 3), (0x41, 0), (0, 15)])
def test_a_subnormal_limits_the_base(mantissa: int, zeros: int) -> None:
    """Row r has exponent 127 + r, so that each higher base saves a row; but base 112 + i shifts a
    subnormal right by i, and only the zero bits that it ends in may go."""
    w = from_bits((127 + torch.arange(16)) << 7).repeat_interleave(64).view(16, 64)
    w[0, 0] = from_bits([mantissa])[0]
    assert int(pack_both(w)[3][3]) == 112 + zeros
    assert_round_trip(w)


# ---- Python functions ---------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_stays_dense(backend: str) -> None:
    table = nf12.pack(special_weights(2, 384), backend=backend)
    assert isinstance(table, nf12.StaysDense)
    assert table.dense_bytes == 2 * 2 * 384
    assert table.packed_bytes >= 6 * 1536 + 6 * 4 + 16
    assert "2 x 384" in table.reason and str(table.packed_bytes) in table.reason
    # Nine of sixteen rows are the first to pay: 1536 + 4 + 16 bytes against 128 a row.
    assert isinstance(nf12.pack(torch.ones(12, 64).bfloat16()), nf12.StaysDense)
    assert isinstance(nf12.pack(torch.ones(13, 64).bfloat16()), nf12.PackedWeight)


@pytest.mark.parametrize("backend", BACKENDS)
def test_slices_unpack_and_multiply(backend: str) -> None:
    w = special_weights(3, 100, 300, share=0.03, finite=True)
    packed = nf12.pack(w, backend=backend)
    assert isinstance(packed, nf12.PackedWeight)
    cases = {
        "experts": (packed.slice_experts(1, 3), w[1:3]),
        "rows": (packed.slice_rows(16, 64), w[:, 16:64]),
        "last rows": (packed.slice_rows(48, 100), w[:, 48:]),
        "columns": (packed.slice_columns(64, 192), w[..., 64:192]),
        "last columns": (packed.slice_columns(256, 300), w[..., 256:]),
        "all three": (
            packed.slice_experts(2, 3).slice_rows(32, 96).slice_columns(128, 300),
            w[2:3, 32:96, 128:],
        ),
    }
    for name, (part, expected) in cases.items():
        assert part.escapes is packed.escapes
        assert_bits_equal(nf12.unpack(part, backend=backend), expected.contiguous(), name)
        nf12.PackedWeight(part.payload, part.index, part.escapes, part.meta)  # passes the check
        one = nf12.PackedWeight.trusted(part.payload[-1], part.index[-1], *part.operands[2:])
        x = activations(5, one.in_features)
        assert_gemm_close(nf12.gemm(x, one, backend=backend), x, expected[-1], what=name)
        ids = torch.tensor([0, one.out_features - 1])
        assert_bits_equal(nf12.gather(ids, one, backend=backend), expected[-1][ids], name)


def test_compiled_specification_is_exact() -> None:
    """The torch backend inside torch.compile: no data-dependent shape, every kind of tile."""
    w = special_weights(40, 200, share=0.04)
    w[:16, :64] = 0
    packed = operands(pack_spec(w))
    ids = torch.tensor([[3, 39], [-1, 40]])

    @torch.compile(fullgraph=True, backend="aot_eager")
    def both(ids: Tensor) -> tuple[Tensor, Tensor]:
        return packing.unpack_spec(*packed), packing.gather_spec(ids, *packed)

    dense, rows = both(ids)
    assert_bits_equal(dense, w)
    assert_bits_equal(rows[0], w[[3, 39]])
    assert (bits(rows[1]) == 0x7FFF).all(), "ids outside give rows of NaN in traced code"
