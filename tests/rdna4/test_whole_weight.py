"""The shipped gfx1201 code of unpack, gather and pack, executed instruction by instruction.

Run by hand: `TINYGRAD=/path/to/tinygrad pytest tests/rdna4`. Results are compared as integers with
the readable specification, nf12/packing.py. What the emulator cannot run is left to the host model:
16-byte accesses that are not aligned to 4 (it rounds their addresses down), and check (it knows no
s_getpc_b64).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import code_objects
import emulator
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nf12.packing import pack_spec

SENTINEL = 0xA5A5
GUARD = 64  # elements before and after every output
WAVES = 8  # of a block of unpack and pack

reason = emulator.why_not()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))

Array = NDArray[Any]
Load = Callable[[str], emulator.CodeObject]


def structure(
    name: str, *fields: tuple[str, Any], bases: tuple[type, ...] = ()
) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


P, I32, U32, I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64

# csrc/format/layout.hpp and stack.hpp, field by field.
PackedView = structure(
    "PackedView",
    *(("payload", P), ("index", P), ("escapes", P)),
    *(("payload_stride_bytes", I64), ("index_stride", I64), ("n", I64), ("k", I64)),
    *(("quads", U32), ("base", I32)),
)
PackedStack = structure(
    "PackedStack",
    *(("first", PackedView), ("payload_expert_stride_bytes", I64), ("index_expert_stride", I64)),
)
DenseStack = structure(
    "DenseStack",
    *(("weights", P), ("expert_stride", I64), ("row_stride", I64), ("n", I32), ("k", I32)),
)
TileSteps = structure(
    "TileSteps",
    *(("tiles", U32), ("waves", U32), ("rows", I32), ("columns", I32)),
    *(("step_experts", I32), ("step_rows", I32), ("step_columns", I32)),
)
UnpackParams = structure(
    "UnpackParams", ("packed", PackedStack), ("out", DenseStack), ("steps", TileSteps)
)
GatherParams = structure(
    "GatherParams",
    *(("weight", PackedView), ("ids", P), ("out", P), ("out_row_stride", I64), ("count", I64)),
    *(("id_bytes", I32), ("blocks_x", I32), ("blocks_y", I32)),
)
PackParams = structure(
    "PackParams",
    *(("source", DenseStack), ("steps", TileSteps), ("exponents", P), ("subnormal_bits", P)),
    *(("base", I32), ("index", P), ("hashes", P)),
    *(("list", P), ("list_length", U32), ("list_waves", U32), ("differs", P)),
    *(("payload", P), ("escapes", P)),
)


@pytest.fixture(scope="session")
def load() -> Load:
    """Loads a unit, once."""
    return functools.cache(lambda unit: emulator.CodeObject(code_objects.path("gfx1201", unit)))


def random_weights(seed: int, x: int, n: int, k: int, rare: float, base: int = 112) -> Array:
    """BF16 bits [x, n, k] with exponents of the window, and `rare` of them any pattern."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 65536, (x, n, k)) & 0x807F
    bits |= rng.integers(base, base + 16, bits.shape) << 7
    any_bits = rng.integers(0, 65536, bits.shape)
    if base != 112:  # only zeros, Inf and NaN fit every base
        any_bits = rng.choice([0, 0x8000, 0x7F80, 0xFFC1], bits.shape)
    return np.where(rng.random(bits.shape) < rare, any_bits, bits).astype(np.uint16)


def packed_by_specification(w: Array) -> tuple[Array, Array, Array, int]:
    payload, index, escapes, meta = pack_spec(
        torch.from_numpy(w.view(np.int16)).view(torch.bfloat16)
    )
    arrays = (t.contiguous().numpy() for t in (payload, index, escapes))
    return (*arrays, int(meta[3]))


def stack_of(payload: Array, index: Array, escapes: Array, base: int, n: int, k: int) -> Any:
    columns, rows = -(-k // 64), -(-n // 16)
    view = PackedView(
        payload=payload.ctypes.data,
        index=index.ctypes.data,
        escapes=escapes.ctypes.data,
        payload_stride_bytes=columns * 1536,
        index_stride=columns,
        n=n,
        k=k,
        quads=escapes.size // 4,
        base=base,
    )
    return PackedStack(view, rows * columns * 1536, rows * columns)


def steps_of(x: int, n: int, k: int, waves: int) -> Any:
    rows, columns = -(-n // 16), -(-k // 64)
    return TileSteps(
        *(x * rows * columns, waves, rows, columns),
        *(waves // columns // rows, waves // columns % rows, waves % columns),
    )


def guarded(count: int) -> Array:
    return np.full(count + 2 * GUARD, SENTINEL, np.uint16)


def inside(memory: Array) -> Array:
    assert (memory[:GUARD] == SENTINEL).all(), "written before the output"
    assert (memory[-GUARD:] == SENTINEL).all(), "written past the output"
    return memory[GUARD:-GUARD]


def assert_equal(got: Array, wanted: Array) -> None:
    where = np.argwhere(got != wanted)
    assert where.size == 0, (
        f"{len(where)} differ, first at {where[0]}: "
        f"{got[tuple(where[0])]:#x}, wanted {wanted[tuple(where[0])]:#x}"
    )


SHAPES = [(1, 16, 64), (1, 17, 130), (2, 33, 200), (1, 5, 7)]


@pytest.mark.parametrize("rare", [0.0, 0.01, 0.3], ids=["clean", "listed", "raw"])
@pytest.mark.parametrize(("x", "n", "k"), SHAPES)
@pytest.mark.parametrize("base", [112, 107])
def test_unpack(load: Load, x: int, n: int, k: int, rare: float, base: int) -> None:
    w = random_weights(1, x, n, k, rare, base)
    payload, index, escapes, found = packed_by_specification(w)
    out = guarded(w.size)
    p = UnpackParams(
        packed=stack_of(payload, index, escapes, found, n, k),
        out=DenseStack(out.ctypes.data + 2 * GUARD, n * k, k, n, k),
        steps=steps_of(x, n, k, WAVES),
    )
    alignment = 16 if k % 8 == 0 else 4 if k % 2 == 0 else 2
    load("unpack").launch(f"nf12_unpack_a{alignment}", (1, 1, 1), WAVES * 32, p)
    assert_equal(inside(out).reshape(x, n, k), w)


@pytest.mark.parametrize("rare", [0.0, 0.01, 0.3], ids=["clean", "listed", "raw"])
@pytest.mark.parametrize("id_type", [np.int32, np.int64])
@pytest.mark.parametrize("k", [64, 334])
def test_gather(load: Load, k: int, id_type: type, rare: float) -> None:
    w = random_weights(2, 1, 37, k, rare, 107)[0]
    payload, index, escapes, base = packed_by_specification(w)
    ids = np.array([0, 36, 5, 37, -1, np.iinfo(id_type).max, 17], id_type)
    out = guarded(ids.size * k)
    p = GatherParams(
        weight=stack_of(payload, index, escapes, base, 37, k).first,
        ids=ids.ctypes.data,
        out=out.ctypes.data + 2 * GUARD,
        out_row_stride=k,
        count=ids.size,
        id_bytes=ids.itemsize,
        blocks_x=3,
        blocks_y=1,
    )
    load("gather").launch(f"nf12_gather_a{16 if k == 64 else 4}", (3, 1, 1), 128, p)
    wanted = np.full((ids.size, k), 0x7FFF, np.uint16)
    for i, row in enumerate(ids):
        if 0 <= row < 37:
            wanted[i] = w[row]
    assert_equal(inside(out).reshape(wanted.shape), wanted)


@pytest.mark.parametrize("rare", [0.0, 0.01, 0.3], ids=["clean", "listed", "raw"])
@pytest.mark.parametrize(("x", "n", "k"), SHAPES)
def test_pack(load: Load, x: int, n: int, k: int, rare: float) -> None:
    """The host's part comes from the specification: the base, and the index words."""
    w = random_weights(3, x, n, k, rare, 107)
    payload, index, escapes, base = packed_by_specification(w)
    tiles = index.size
    exponents, subnormal_bits = np.zeros(256, np.uint64), np.zeros(1, np.uint32)
    words, hashes = np.zeros(tiles, np.uint32), np.zeros(2 * tiles, np.uint32)
    got_payload = np.full(payload.size, 0xA5, np.uint8)
    got_escapes = np.full(escapes.size, 0xA5A5A5A5, np.uint32)
    listed = index.reshape(-1).view(np.uint32)
    first_quads: dict[int, int] = {}
    for tile, word in enumerate(listed):
        if word & 0xFF == 255:
            first_quads.setdefault(int(word >> 8), tile)
    owners = np.array([*first_quads.values(), 0], np.uint32)
    p = PackParams(
        source=DenseStack(w.ctypes.data, n * k, k, n, k),
        steps=steps_of(x, n, k, WAVES),
        exponents=exponents.ctypes.data,
        subnormal_bits=subnormal_bits.ctypes.data,
        base=base,
        index=words.ctypes.data,
        hashes=hashes.ctypes.data,
        list=owners.ctypes.data,
        list_length=owners.size - 1,
        list_waves=WAVES,
        payload=got_payload.ctypes.data,
        escapes=got_escapes.ctypes.data,
    )
    code, alignment = load("pack"), 16 if k % 8 == 0 else 2
    code.launch(f"nf12_pack_survey_a{alignment}", (1, 1, 1), WAVES * 32, p)
    wanted = np.bincount(w.reshape(-1) >> 7 & 0xFF, minlength=256)
    wanted[0] += tiles * 1024 - w.size  # padding
    assert_equal(exponents, wanted.astype(np.uint64))
    code.launch(f"nf12_pack_count_a{alignment}", (1, 1, 1), WAVES * 32, p)
    is_raw = listed & 0xFF == 255
    assert_equal(words[~is_raw], listed[~is_raw] & 0xFF)
    assert (words[is_raw] > 64).all()
    words[:] = listed
    code.launch(f"nf12_pack_encode_a{alignment}", (1, 1, 1), WAVES * 32, p)
    code.launch("nf12_pack_raw", (1, 1, 1), WAVES * 32, p)
    assert_equal(got_payload, payload.reshape(-1))
    assert_equal(got_escapes, escapes.view(np.uint32))


@pytest.mark.parametrize("same", [True, False])
def test_compare(load: Load, same: bool) -> None:
    w = np.zeros((1, 32, 64), np.uint16)
    if not same:
        w[0, 30, 61] = 0x8000
    pairs, differs = np.array([1, 0], np.uint32), np.full(1, 7, np.uint32)
    p = PackParams(
        source=DenseStack(w.ctypes.data, 2048, 64, 32, 64),
        steps=steps_of(1, 32, 64, WAVES),
        list=pairs.ctypes.data,
        list_length=1,
        list_waves=WAVES,
        differs=differs.ctypes.data,
    )
    load("pack").launch("nf12_pack_compare", (1, 1, 1), WAVES * 32, p)
    assert differs[0] == (not same)
