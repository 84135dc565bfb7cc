"""The NF12 format in torch operations: the readable specification and the `torch` backend.

docs/format.md draws the tile. This module packs, unpacks, gathers, multiplies and checks on any
device, with integer arithmetic only, so that no flush-to-zero mode can touch a weight. The C++
packer writes the same bytes; the tests compare them.

Weights travel as BF16 bit patterns in int32, a slice of at most `SLICE_WEIGHTS` at a time, so that
temporaries stay bounded however large the weight is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

FORMAT_VERSION = 1
TILE_ROWS = 16
TILE_COLUMNS = 64
TILE_WEIGHTS = TILE_ROWS * TILE_COLUMNS
TILE_BYTES = TILE_WEIGHTS + TILE_WEIGHTS // 2
MIN_BASE, NEUTRAL_BASE, MAX_BASE = 96, 112, 128
WINDOW = 16
MAX_LISTED = 64
RAW_COUNT = 255
RAW_QUADS = TILE_WEIGHTS // 8
MAX_QUADS = 1 << 24

SLICE_WEIGHTS = 1 << 22

# payload, index, escapes, out_features, in_features, base
Operands: TypeAlias = tuple[Tensor, Tensor, Tensor, int, int, int]

# Which of a code word's eight columns its four bytes hold, low and high nibble.
_LOW_NIBBLES = [0, 4, 1, 5]
_HIGH_NIBBLES = [2, 6, 3, 7]


class FormatError(ValueError):
    """A packed weight breaks a rule of the format. Names the tensor, the rule and the value."""


def dtype_name(dtype: torch.dtype) -> str:
    """ "bfloat16" of torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def tile_rows(n: int) -> int:
    """Tile rows R that cover `n` rows."""
    return -(-n // TILE_ROWS)


def tile_columns(k: int) -> int:
    """Tile columns C that cover `k` columns."""
    return -(-k // TILE_COLUMNS)


def scale_bits(bits: Tensor, shift: int) -> Tensor:
    """BF16 patterns (int32) of `value * 2**shift`. Zeros, Inf and NaN stay as they are.

    Bits that the result cannot hold are cut off and an overflow becomes Inf, so a value scales
    exactly if and only if scaling back returns it.
    """
    if shift == 0:
        return bits
    exponent = bits >> 7 & 0xFF
    significand = (bits & 0x7F) | (exponent > 0).int() << 7
    scaled = exponent.clamp(min=1) + shift
    for step in (4, 2, 1):  # bring the leading bit of a subnormal to bit 7
        low = (significand < 0x100 >> step).int() * step
        significand = significand << low
        scaled = scaled - low
    normal = scaled << 7 | significand & 0x7F
    subnormal = significand >> (1 - scaled).clamp(0, 8)
    magnitude = torch.where(scaled > 0, normal, subnormal).clamp(max=0x7F80)
    unchanged = (exponent == 0xFF) | (bits & 0x7FFF == 0)
    return torch.where(unchanged, bits, bits & 0x8000 | magnitude)


# ---- the base -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Exponents:
    """What the choice of a base needs to know about all weights of a tensor."""

    counts: list[int]  # by biased exponent
    subnormal_zeros: int  # fewest trailing zero bits of a subnormal's mantissa; 16 without one

    def escapes(self, base: int) -> int:
        return sum(self.counts) - sum(self.counts[base : base + WINDOW])

    def loses_bits(self, base: int) -> bool:
        shift = NEUTRAL_BASE - base
        normal = [e for e in range(1, 255) if self.counts[e]]
        outside = [e for e in normal if not base <= e < base + WINDOW]
        return any(not 1 <= e + shift <= 254 for e in outside) or -shift > self.subnormal_zeros

    def best_base(self) -> int:
        allowed = [b for b in range(MIN_BASE, MAX_BASE + 1) if not self.loses_bits(b)]
        return min(allowed, key=lambda b: (self.escapes(b), abs(b - NEUTRAL_BASE), b))


def _exponents(weight: Tensor) -> _Exponents:
    counts = torch.zeros(256, dtype=torch.int64, device=weight.device)
    subnormal_zeros = MAX_BASE - NEUTRAL_BASE
    for part in _slices(weight.shape[0], tile_rows(weight.shape[1]), tile_columns(weight.shape[2])):
        bits = _slice_bits(weight, part)
        counts += torch.bincount((bits >> 7 & 0xFF).flatten(), minlength=256)
        mantissa = bits[bits & 0x7F80 == 0] & 0x7F
        mantissa = mantissa[mantissa != 0]
        if mantissa.numel():
            lowest = int((mantissa & -mantissa).min())
            subnormal_zeros = min(subnormal_zeros, lowest.bit_length() - 1)
    return _Exponents(counts.tolist(), subnormal_zeros)


# ---- slices and tiles ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Slice:
    """Experts x0..x1 and tile rows r0..r1: as many whole tile rows as SLICE_WEIGHTS allows."""

    x0: int
    x1: int
    r0: int
    r1: int

    def of(self, tiles: Tensor) -> Tensor:
        """The slice of a tensor [X, R, ...]."""
        return tiles[self.x0 : self.x1, self.r0 : self.r1]


def _slices(experts: int, rows: int, columns: int) -> Iterator[_Slice]:
    tiles = max(1, SLICE_WEIGHTS // TILE_WEIGHTS)
    row_step = min(rows, max(1, tiles // columns))
    expert_step = max(1, tiles // (rows * columns))
    for x in range(0, experts, expert_step):
        for r in range(0, rows, row_step):
            yield _Slice(x, min(x + expert_step, experts), r, min(r + row_step, rows))


def _slice_bits(weight: Tensor, part: _Slice) -> Tensor:
    """BF16 patterns, int32 [x, rows, K]."""
    rows = weight[part.x0 : part.x1, part.r0 * TILE_ROWS : part.r1 * TILE_ROWS]
    return rows.view(torch.int16).int() & 0xFFFF


def _fold(tensor: Tensor, width: int) -> Tensor:
    """[..., P] -> [..., P / width, width], a view."""
    return tensor.reshape(*tensor.shape[:-1], tensor.shape[-1] // width, width)


def _to_tiles(rows: Tensor, padding: int) -> Tensor:
    """[x, rows, K] -> [x, r, C, 1024], rows and columns beyond the weight filled with `padding`."""
    rows = F.pad(rows, (0, -rows.shape[2] % TILE_COLUMNS, 0, -rows.shape[1] % TILE_ROWS),
                 value=padding)  # fmt: skip
    tiles = _fold(rows, TILE_COLUMNS)  # [x, rows, C, 64]
    tiles = tiles.reshape(tiles.shape[0], -1, TILE_ROWS, *tiles.shape[2:])
    return tiles.transpose(2, 3).flatten(3)


def _from_tiles(tiles: Tensor, n: int, k: int) -> Tensor:
    """[x, r, C, 1024] -> [x, n, k]."""
    rows = _fold(tiles, TILE_COLUMNS).transpose(2, 3)
    return rows.flatten(3).flatten(1, 2)[:, :n, :k]


# ---- pack ---------------------------------------------------------------------------------------


def pack_spec(weight: Tensor, base: int = -1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Packs BF16 `weight` [N, K] or [X, N, K], any strides.

    Returns payload uint8 [(X,) R, C, 1536], index int32 [(X,) R, C], escapes int32 [E] on the
    weight's device, and meta int32 [4] on the CPU. `base` -1 takes the best base. Raises TypeError
    for another dtype, ValueError for another rank, an empty weight, a base that would lose bits,
    or a side table past 2**24 quads.
    """
    if weight.dtype != torch.bfloat16:
        raise TypeError(
            f"nf12::pack: weight has dtype {dtype_name(weight.dtype)}, expected bfloat16"
        )
    if weight.dim() not in (2, 3):
        raise ValueError(f"nf12::pack: weight has {weight.dim()} dimensions, expected 2 or 3")
    if weight.numel() == 0:
        raise ValueError(
            f"nf12::pack: weight is {list(weight.shape)}, each size must be at least 1"
        )
    if base != -1 and not MIN_BASE <= base <= MAX_BASE:
        raise ValueError(f"nf12::pack: base is {base}, expected {MIN_BASE} .. {MAX_BASE}")
    stack = weight.detach() if weight.dim() == 3 else weight.detach().unsqueeze(0)
    exponents = _exponents(stack)
    if base == -1:
        base = exponents.best_base()
    elif exponents.loses_bits(base):
        raise ValueError(
            f"nf12::pack: base {base} would lose bits of this weight, leave the choice to the "
            "packer (-1)"
        )

    experts, n, k = stack.shape
    rows, columns = tile_rows(n), tile_columns(k)
    index, quads = _plan_table(stack, base)
    payload = torch.empty(
        (experts, rows, columns, TILE_BYTES), dtype=torch.uint8, device=weight.device
    )
    escapes = torch.zeros(4 * quads, dtype=torch.int32, device=weight.device)
    for part in _slices(experts, rows, columns):
        bits = _slice_bits(stack, part)
        _write_slice(bits, base, part.of(index), part.of(payload), escapes)
    meta = torch.tensor([FORMAT_VERSION, n, k, base], dtype=torch.int32)
    if weight.dim() == 2:
        payload, index = payload[0], index[0]
    return payload, index, escapes, meta


def _is_escape(bits: Tensor, base: int) -> Tensor:
    exponent = bits >> 7 & 0xFF
    return (exponent < base) | (exponent >= base + WINDOW)


def _raw_entries(bits: Tensor, base: int) -> Tensor:
    """[x, rows, K] -> raw form of every tile, int32 [x, r, C, 512]. Padding is +0."""
    values = _fold(_to_tiles(scale_bits(bits, NEUTRAL_BASE - base), padding=0), 2)
    return values[..., 0] | values[..., 1] << 16


def _raw_values(entries: Tensor) -> Tensor:
    """Raw entries [..., E] -> the patterns they hold, int32 [..., 2 E]."""
    return torch.stack((entries & 0xFFFF, entries >> 16 & 0xFFFF), -1).flatten(-2)


def _plan_table(stack: Tensor, base: int) -> tuple[Tensor, int]:
    """Index words [X, R, C] and the length of the side table in quads."""
    experts, n, k = stack.shape
    rows, columns = tile_rows(n), tile_columns(k)
    counts = torch.empty((experts, rows, columns), dtype=torch.int64, device=stack.device)
    numbers = torch.arange(counts.numel(), device=stack.device).view_as(counts)
    owners = numbers.clone()  # of a raw tile: the first tile equal to it
    distinct = []  # raw tiles, equal ones of a slice already one
    for part in _slices(experts, rows, columns):
        bits = _slice_bits(stack, part)
        count = _is_escape(_to_tiles(bits, padding=base << 7), base).sum(-1)
        part.of(counts).copy_(count)
        raw = count > MAX_LISTED
        if bool(raw.any()):
            unique, first = _first_equal(_raw_entries(bits, base)[raw], part.of(numbers)[raw])
            distinct.append(unique)
            part.of(owners)[raw] = first
    counts, numbers, owners = counts.flatten(), numbers.flatten(), owners.flatten()
    if len(distinct) > 1:  # between slices
        firsts = numbers[(counts > MAX_LISTED) & (owners == numbers)]
        owners[firsts] = _first_equal(torch.cat(distinct), firsts)[1]
        owners = owners[owners]

    quads = torch.where(counts > MAX_LISTED, RAW_QUADS, (counts + 3) // 4)
    quads = torch.where(owners == numbers, quads, 0)
    ends = quads.cumsum(0)
    total = int(ends[-1])
    if total > MAX_QUADS:
        raise ValueError(f"nf12::pack: the side table needs {total} quads, the most is {MAX_QUADS}")
    word = (ends - quads)[owners] << 8 | torch.where(counts > MAX_LISTED, RAW_COUNT, counts)
    word = torch.where(counts == 0, 0, word)
    return word.int().view(experts, rows, columns), total


def _first_equal(tiles: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """For tiles [T, 512] with ascending `numbers` [T]: the distinct tiles in order of their first
    number, and for each of the T tiles the number of the first one equal to it."""
    unique, inverse = torch.unique(tiles, dim=0, return_inverse=True)
    first = numbers.new_full((unique.shape[0],), torch.iinfo(numbers.dtype).max)
    first.scatter_reduce_(0, inverse, numbers, "amin")
    return unique[first.argsort()], first[inverse]


def _write_slice(bits: Tensor, base: int, index: Tensor, payload: Tensor, escapes: Tensor) -> None:
    """Writes payload [x, r, C, 1536] and the slice's part of the side table."""
    tiles = _to_tiles(bits, padding=base << 7)
    escape = _is_escape(tiles, base)
    count = index & 0xFF
    quad = (index >> 8 & 0xFFFFFF).long()
    raw = count == RAW_COUNT

    coded = ~(escape | raw.unsqueeze(-1))
    sign_mantissa = torch.where(coded, tiles >> 8 & 0x80 | tiles & 0x7F, 0)
    code = torch.where(coded, (tiles >> 7 & 0xFF) - base, 0).to(torch.uint8)
    nibbles = _fold(code, 8)
    payload[..., :TILE_WEIGHTS] = sign_mantissa.to(torch.uint8)
    payload[..., TILE_WEIGHTS:] = (
        nibbles[..., _LOW_NIBBLES] | nibbles[..., _HIGH_NIBBLES] << 4
    ).flatten(-2)

    listed = escape & ~raw.unsqueeze(-1)
    where = listed.flatten(0, 2).nonzero()  # (tile, position) in table order
    entry_tile, position = where[:, 0], where[:, 1]
    counts = torch.where(raw, 0, count).flatten().long()
    rank = torch.arange(len(where), device=bits.device) - (counts.cumsum(0) - counts)[entry_tile]
    value = scale_bits(tiles.flatten(0, 2)[entry_tile, position], NEUTRAL_BASE - base)
    escapes[4 * quad.flatten()[entry_tile] + rank] = (position << 16 | value).int()
    if raw.any():
        entries = _raw_entries(bits, base)[raw]  # a shared tile is written again, the same bytes
        span = torch.arange(4 * RAW_QUADS, device=bits.device)
        escapes[4 * quad[raw].unsqueeze(1) + span] = entries


# ---- unpack and gather --------------------------------------------------------------------------


def _decode(sign_mantissa: Tensor, codes: Tensor) -> Tensor:
    """Bytes [..., W] and code bytes [..., W / 2] -> patterns of `w * 2**s`, int32 [..., W]."""
    low, high = codes.int() & 0xF, codes.int() >> 4
    low, high = _fold(low, 4), _fold(high, 4)
    code = torch.stack((low[..., 0], low[..., 2], high[..., 0], high[..., 2],
                        low[..., 1], low[..., 3], high[..., 1], high[..., 3]), -1)  # fmt: skip
    byte = sign_mantissa.int()
    return (byte & 0x80) << 8 | (NEUTRAL_BASE + code.flatten(-2)) << 7 | byte & 0x7F


def _patch(bits: Tensor, word: Tensor, escapes: Tensor, first: Tensor | int) -> Tensor:
    """Replaces escapes in scaled patterns [..., W] that start at position `first` [...] of a tile.

    Shapes never depend on the table's content, and every table read is clamped into it: this runs
    under torch.compile, in graph captures, and safely on unchecked words.
    """
    if escapes.shape[0] == 0:
        return bits
    width = bits.shape[-1]
    table = _fold(escapes, 4)
    count = (word & 0xFF).unsqueeze(-1)
    quad = (word >> 8 & 0xFFFFFF).unsqueeze(-1)
    first = first.unsqueeze(-1) if isinstance(first, Tensor) else first

    def read(start: Tensor, quads: int) -> Tensor:
        at = start + torch.arange(quads, dtype=torch.int32, device=bits.device)
        return table[at.clamp(max=table.shape[0] - 1)].flatten(-2)

    raw = _raw_values(read(quad + first // 8, width // 8))
    bits = torch.where(count == RAW_COUNT, raw, bits)

    listed = read(quad, MAX_LISTED // 4)
    slot = torch.arange(MAX_LISTED, dtype=torch.int32, device=bits.device)
    position = (listed >> 16 & 0x3FF) - first
    used = (slot < count) & (count <= MAX_LISTED) & (position >= 0) & (position < width)
    target = torch.where(used, position, width)  # the column past the end takes what is unused
    return F.pad(bits, (0, 1)).scatter(-1, target.long(), listed & 0xFFFF)[..., :width]


def _to_bf16(bits: Tensor) -> Tensor:
    return bits.to(torch.int16).view(torch.bfloat16)


def _unpack_slice(payload: Tensor, index: Tensor, escapes: Tensor, base: int) -> Tensor:
    """Tiles [x, r, C, 1536] -> BF16 patterns int32 [x, r, C, 1024]."""
    bits = _decode(payload[..., :TILE_WEIGHTS], payload[..., TILE_WEIGHTS:])
    return scale_bits(_patch(bits, index, escapes, 0), base - NEUTRAL_BASE)


def unpack_spec(
    payload: Tensor, index: Tensor, escapes: Tensor, out_features: int, in_features: int, base: int
) -> Tensor:
    """Exact BF16 [N, K], or [X, N, K] from a 4-D payload, on the payload's device."""
    stack, words = payload, index
    if payload.dim() == 3:
        stack, words = payload.unsqueeze(0), index.unsqueeze(0)
    experts, rows, columns = words.shape
    out = torch.empty(
        (experts, out_features, in_features), dtype=torch.bfloat16, device=payload.device
    )
    for part in _slices(experts, rows, columns):
        bits = _unpack_slice(part.of(stack), part.of(words), escapes, base)
        target = out[part.x0 : part.x1, part.r0 * TILE_ROWS : part.r1 * TILE_ROWS]
        target.copy_(_to_bf16(_from_tiles(bits, target.shape[1], in_features)))
    return out if payload.dim() == 4 else out[0]


def gather_spec(
    ids: Tensor,
    payload: Tensor,
    index: Tensor,
    escapes: Tensor,
    out_features: int,
    in_features: int,
    base: int,
) -> Tensor:
    """Rows `ids` (int32 or int64, any shape) of a [N, K] weight: BF16 [*ids.shape, K].

    An id outside 0..N-1 raises IndexError on a CPU and gives a row of NaN (0x7FFF) elsewhere and
    in traced code, where looking at ids would stop the device.
    """
    flat = ids.reshape(-1).long()
    outside = (flat < 0) | (flat >= out_features)
    if ids.device.type == "cpu" and not torch.compiler.is_compiling() and bool(outside.any()):
        position = int(outside.nonzero()[0])
        raise IndexError(
            f"nf12::gather: ids holds {int(flat[position])} at position {position}, the packed "
            f"weight has out_features {out_features}"
        )
    flat = torch.where(outside, 0, flat)
    sign_mantissa = _fold(payload[..., :TILE_WEIGHTS], TILE_COLUMNS)
    codes = _fold(payload[..., TILE_WEIGHTS:], TILE_COLUMNS // 2)
    out = torch.empty((flat.shape[0], in_features), dtype=torch.bfloat16, device=payload.device)
    step = max(1, SLICE_WEIGHTS // (index.shape[-1] * TILE_COLUMNS))
    for start in range(0, flat.shape[0], step):
        part = flat[start : start + step]
        r, q = part // TILE_ROWS, part % TILE_ROWS
        bits = _decode(sign_mantissa[r, :, q], codes[r, :, q])
        first = (TILE_COLUMNS * q).int().unsqueeze(-1)
        bits = scale_bits(_patch(bits, index[r], escapes, first), base - NEUTRAL_BASE)
        rows = bits.flatten(1)[:, :in_features]
        rows = torch.where(outside[start : start + step].unsqueeze(1), 0x7FFF, rows)
        out[start : start + step] = _to_bf16(rows)
    return out.view(*ids.shape, in_features)


# ---- gemm ---------------------------------------------------------------------------------------


def gemm_spec(
    x: Tensor,
    payload: Tensor,
    index: Tensor,
    escapes: Tensor,
    out_features: int,
    in_features: int,
    base: int,
    bias: Tensor | None = None,
) -> Tensor:
    """`x W^T + bias`: x BF16 [..., K], bias BF16 [N] -> BF16 [..., N], W unpacked slice by slice.

    On a CPU sums and bias are FP32 and the result is rounded once; on other devices the product is
    torch's own BF16 `linear` with its rounding.
    """
    tokens = x.reshape(-1, in_features)
    y = torch.empty((tokens.shape[0], out_features), dtype=torch.bfloat16, device=x.device)
    for part in _slices(1, *index.shape):
        n0, n1 = part.r0 * TILE_ROWS, min(part.r1 * TILE_ROWS, out_features)
        rows = slice(part.r0, part.r1)
        w = unpack_spec(payload[rows], index[rows], escapes, n1 - n0, in_features, base)
        y[:, n0:n1] = linear_once_rounded(tokens, w, None if bias is None else bias[n0:n1])
    return y.view(*x.shape[:-1], out_features)


def linear_once_rounded(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """BF16 `linear` of dense operands as the `torch` backend computes it."""
    if x.device.type != "cpu":
        return F.linear(x, w, bias)
    return F.linear(x.float(), w.float(), None if bias is None else bias.float()).bfloat16()


# ---- statistics ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class TileCounts:
    """How many tiles of a packed weight are clean, listed (1..64 escapes) and raw."""

    clean: int
    listed: int
    raw: int


def count_tiles(index: Tensor) -> TileCounts:
    """Counts the kinds of tiles in a valid `index`. Synchronises."""
    count = index & 0xFF
    raw = int((count == RAW_COUNT).sum())
    clean = int((count == 0).sum())
    return TileCounts(clean, index.numel() - clean - raw, raw)


def count_escapes(index: Tensor, escapes: Tensor, out_features: int, in_features: int) -> int:
    """Weights outside the window, those of raw tiles included. Synchronises."""
    words = index if index.dim() == 3 else index.unsqueeze(0)
    total = 0
    for part in _slices(*words.shape):
        count = part.of(words) & 0xFF
        raw = count == RAW_COUNT
        total += int(torch.where(raw, 0, count).sum())
        if bool(raw.any()):
            values = _raw_values(_table_reads(part.of(words), escapes, raw, RAW_QUADS))
            padding = _padding(part, out_features, in_features, index.device)
            padding = padding.expand(*raw.shape, TILE_WEIGHTS)[raw]
            total += int((_is_escape(values, NEUTRAL_BASE) & ~padding).sum())
    return total


# ---- check --------------------------------------------------------------------------------------


def check_spec(
    payload: Tensor,
    index: Tensor,
    escapes: Tensor,
    out_features: int,
    in_features: int,
    base: int,
    version: int,
) -> None:
    """Holds a packed weight against every rule of the format; raises FormatError. Synchronises."""
    _check_header(payload, index, escapes, out_features, in_features, base, version)
    if payload.dim() == 3:
        payload, index = payload.unsqueeze(0), index.unsqueeze(0)
    quads = escapes.shape[0] // 4
    for part in _slices(*index.shape):
        at = _Where(part)
        words = part.of(index)
        _check_words(words, quads, at)
        padding = _padding(part, out_features, in_features, index.device)
        zero = padding.expand(*words.shape, TILE_WEIGHTS)
        zero = _check_listed(words, escapes, base, padding, zero, at)
        zero = _check_raw(words, escapes, base, padding, zero, at)
        tiles = part.of(payload)
        present = _decode(tiles[..., :TILE_WEIGHTS], tiles[..., TILE_WEIGHTS:])
        at.refuse(
            zero & (present != NEUTRAL_BASE << 7), "payload",
            "padding, escapes and raw tiles must be zero", "not zero",
        )  # fmt: skip


def _refuse(tensor: str, rule: str, value: object) -> NoReturn:
    raise FormatError(f"nf12::check: {tensor}: {rule}: {value}")


def _check_header(
    payload: Tensor, index: Tensor, escapes: Tensor, n: int, k: int, base: int, version: int
) -> None:  # fmt: skip
    if version != FORMAT_VERSION:
        _refuse("meta", f"version must be {FORMAT_VERSION}", version)
    if not MIN_BASE <= base <= MAX_BASE:
        _refuse("meta", f"base must be {MIN_BASE}..{MAX_BASE}", base)
    if n < 1 or k < 1:
        _refuse("meta", "out_features and in_features must be at least 1", f"{n} x {k}")
    for name, tensor, dtype in (
        ("payload", payload, torch.uint8),
        ("index", index, torch.int32),
        ("escapes", escapes, torch.int32),
    ):
        if tensor.dtype != dtype:
            _refuse(name, f"dtype must be {dtype}", tensor.dtype)
        if tensor.device != payload.device:
            _refuse(name, f"must be on the payload's device {payload.device}", tensor.device)
    tiles = (tile_rows(n), tile_columns(k))
    shape = tuple(payload.shape)
    if len(shape) not in (3, 4) or shape[-3:] != (*tiles, TILE_BYTES) or shape[0] == 0:
        rule = f"shape must be [{tiles[0]}, {tiles[1]}, {TILE_BYTES}] or [X, ...] of it"
        _refuse("payload", f"{rule} for {n} x {k} weights", list(shape))
    if tuple(index.shape) != shape[:-1]:
        _refuse("index", f"shape must be {list(shape[:-1])}", list(index.shape))
    if escapes.dim() != 1 or escapes.shape[0] % 4 or escapes.shape[0] // 4 > MAX_QUADS:
        rule = f"must be 1-D, a multiple of 4 and at most {4 * MAX_QUADS} entries"
        _refuse("escapes", rule, list(escapes.shape))


@dataclass(frozen=True)
class _Where:
    """Turns a position within a slice into the tile it names."""

    part: _Slice

    def refuse(self, bad: Tensor, tensor: str, rule: str, value: Tensor | str) -> None:
        """Raises for the first True of `bad` [x, r, C] or [x, r, C, positions]."""
        if not bool(bad.any()):
            return
        x, r, c, *rest = bad.nonzero()[0].tolist()
        place = f"expert {x + self.part.x0}, tile ({r + self.part.r0}, {c})"
        if rest:
            place += f", position {rest[0]}"
        shown = value if isinstance(value, str) else f"{int(value[tuple([x, r, c, *rest])]):#x}"
        _refuse(tensor, rule, f"{shown} at {place}")


def _padding(part: _Slice, n: int, k: int, device: torch.device) -> Tensor:
    """Whether (r, C, position) lies beyond the weight, bool [1, r, C, 1024]."""
    rows = torch.arange(part.r0 * TILE_ROWS, part.r1 * TILE_ROWS, device=device) >= n
    columns = torch.arange(tile_columns(k) * TILE_COLUMNS, device=device) >= k
    return _to_tiles((rows.unsqueeze(1) | columns).unsqueeze(0), padding=0)


def _check_words(words: Tensor, quads: int, at: _Where) -> None:
    count, quad = words & 0xFF, words >> 8 & 0xFFFFFF
    raw = count == RAW_COUNT
    at.refuse(
        (count > MAX_LISTED) & ~raw, "index", f"count must be 0..{MAX_LISTED} or {RAW_COUNT}", count
    )
    at.refuse((count == 0) & (words != 0), "index", "a clean tile's word must be 0", words)
    end = quad + torch.where(raw, RAW_QUADS, (count + 3) // 4)
    at.refuse(end > quads, "index", f"quads must lie within the table's {quads}, end", end)


def _table_reads(words: Tensor, escapes: Tensor, wanted: Tensor, quads: int) -> Tensor:
    """The first `quads` quads of the wanted tiles [T]: int32 [T, 4 * quads], 0 past the table."""
    start = (words[wanted] >> 8 & 0xFFFFFF).long() * 4
    at = start.unsqueeze(1) + torch.arange(4 * quads, device=words.device)
    inside = at < escapes.shape[0]
    return torch.where(inside, escapes[at.clamp(max=escapes.shape[0] - 1)], 0)


def _is_exact(value: Tensor, base: int) -> Tensor:
    shift = NEUTRAL_BASE - base
    return scale_bits(scale_bits(value, -shift), shift) == value


def _spread(rows: Tensor, wanted: Tensor) -> Tensor:
    """Rows [T, P] of the wanted tiles [x, r, C] -> [x, r, C, P], zero elsewhere."""
    full = rows.new_zeros((*wanted.shape, rows.shape[1]))
    full[wanted] = rows
    return full


def _check_listed(
    words: Tensor, escapes: Tensor, base: int, padding: Tensor, zero: Tensor, at: _Where
) -> Tensor:
    """Checks the lists; returns `zero` [x, r, C, 1024] with the listed positions added."""
    count = words & 0xFF
    wanted = (count > 0) & (count <= MAX_LISTED)
    if not bool(wanted.any()):
        return zero
    entries = _table_reads(words, escapes, wanted, MAX_LISTED // 4)
    counts = count[wanted].unsqueeze(1)
    slot = torch.arange(MAX_LISTED, device=words.device)
    used = slot < counts
    filler = ~used & (slot < (counts + 3) // 4 * 4)
    position, value = (entries >> 16 & 0x3FF).long(), entries & 0xFFFF
    exponent = value >> 7 & 0xFF
    descends = F.pad(position[:, 1:] <= position[:, :-1], (1, 0))
    in_padding = padding.expand(*words.shape, TILE_WEIGHTS)[wanted].gather(1, position)
    shown = _spread(entries, wanted)
    for bad, rule in (
        (filler & (entries != 0), "the filler of the last quad must be 0"),
        (used & (entries >> 26 != 0), "bits 26..31 of an entry must be 0"),
        (used & descends, "positions of a tile must ascend"),
        (used & in_padding, "an entry must not lie in the padding"),
        (
            used & (exponent >= NEUTRAL_BASE) & (exponent < NEUTRAL_BASE + WINDOW),
            "an entry must lie outside the window",
        ),
        (used & ~_is_exact(value, base), "an entry times 2^-s must be exact in BF16"),
    ):
        at.refuse(_spread(bad, wanted), "escapes", rule, shown)
    target = torch.where(used, position, TILE_WEIGHTS)
    marks = torch.zeros(
        (len(entries), TILE_WEIGHTS + 1), dtype=torch.bool, device=words.device
    ).scatter_(1, target, True)
    return zero | _spread(marks[:, :TILE_WEIGHTS], wanted)


def _check_raw(
    words: Tensor, escapes: Tensor, base: int, padding: Tensor, zero: Tensor, at: _Where
) -> Tensor:
    """Checks the raw tiles; returns `zero` with all of their positions added."""
    wanted = words & 0xFF == RAW_COUNT
    if not bool(wanted.any()):
        return zero
    entries = _table_reads(words, escapes, wanted, RAW_QUADS)
    value = _raw_values(entries)
    in_padding = padding.expand(*words.shape, TILE_WEIGHTS)[wanted]
    shown = _spread(value, wanted)
    for bad, rule in (
        (in_padding & (value != 0), "padding of a raw tile must be +0"),
        (~_is_exact(value, base), "a raw value times 2^-s must be exact in BF16"),
    ):
        at.refuse(_spread(bad, wanted), "escapes", rule, shown)
    return zero | wanted.unsqueeze(-1)
