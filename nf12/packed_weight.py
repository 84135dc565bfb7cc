"""`PackedWeight`: a weight in NF12, checked once when it is built."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from nf12 import backend as _backend
from nf12.op_errors import translated
from nf12.packing import (
    FORMAT_VERSION,
    TILE_COLUMNS,
    TILE_ROWS,
    FormatError,
    Operands,
    TileCounts,
    check_spec,
    count_escapes,
    count_tiles,
    tile_columns,
    tile_rows,
)

SUFFIXES = ("_payload", "_index", "_escapes", "_meta")
META_BYTES = 16


@dataclass(frozen=True)
class StaysDense:
    """A weight that NF12 would not make smaller: `reason` in words, sizes in bytes."""

    reason: str
    packed_bytes: int
    dense_bytes: int


@dataclass(frozen=True)
class CastReport:
    """What rounding a wider weight to BF16 before packing cost, at worst."""

    source_dtype: torch.dtype
    max_abs_error: float
    max_rel_error: float  # over the weights that are not zero


class PackedWeight:
    """A weight [N, K], or experts [X, N, K], in 12 bits a weight and a side table. Immutable.

    payload: uint8 [(X,) R, C, 1536], index: int32 [(X,) R, C], escapes: int32 [E],
    meta: int32 [4] = version, N, K, base, on any device. R = ceil(N / 16), C = ceil(K / 64).

    Building one holds the tensors against every rule of the format and raises FormatError at the
    first broken one; this reads all of them and is not for traced code.

    `packed.operands` are the leading arguments of the operators:
    `torch.ops.nf12.gemm(x, *packed.operands, bias)`.
    """

    payload: Tensor
    index: Tensor
    escapes: Tensor
    out_features: int
    in_features: int
    base: int
    cast: CastReport | None  # set by pack(..., cast=True)

    def __init__(self, payload: Tensor, index: Tensor, escapes: Tensor, meta: Tensor) -> None:
        version, out_features, in_features, base = meta_integers(meta)
        check(payload, index, escapes, out_features, in_features, base, version)
        self._fill(payload, index, escapes, out_features, in_features, base)

    @classmethod
    def trusted(
        cls,
        payload: Tensor,
        index: Tensor,
        escapes: Tensor,
        out_features: int,
        in_features: int,
        base: int,
        *,
        cast: CastReport | None = None,
    ) -> PackedWeight:
        """Without the check: for tensors that come from the packer or from a checked weight."""
        packed = cls.__new__(cls)
        packed._fill(payload, index, escapes, out_features, in_features, base, cast)
        return packed

    def _fill(
        self,
        payload: Tensor,
        index: Tensor,
        escapes: Tensor,
        out_features: int,
        in_features: int,
        base: int,
        cast: CastReport | None = None,
    ) -> None:
        fields = locals()
        for name in ("payload", "index", "escapes", "out_features", "in_features", "base", "cast"):
            object.__setattr__(self, name, fields[name])

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"PackedWeight is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"PackedWeight is immutable: cannot delete {name}")

    # ---- what it is

    @property
    def operands(self) -> Operands:
        """payload, index, escapes, out_features, in_features, base."""
        return (
            self.payload, self.index, self.escapes, self.out_features, self.in_features, self.base,
        )  # fmt: skip

    @property
    def version(self) -> int:
        """Version of the format."""
        return FORMAT_VERSION

    @property
    def meta(self) -> Tensor:
        """version, N, K, base: a fresh int32 [4] on the CPU."""
        fields = [self.version, self.out_features, self.in_features, self.base]
        return torch.tensor(fields, dtype=torch.int32)

    @property
    def num_experts(self) -> int | None:
        """X of a stack [X, N, K], None for a [N, K] weight."""
        return self.payload.shape[0] if self.payload.dim() == 4 else None

    @property
    def shape(self) -> torch.Size:
        """Shape of the weight it stands for."""
        return torch.Size((*self.payload.shape[:-3], self.out_features, self.in_features))

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the weight it stands for."""
        return torch.bfloat16

    @property
    def device(self) -> torch.device:
        return self.payload.device

    @property
    def nbytes(self) -> int:
        """Bytes of payload, index, escapes and meta."""
        return self.payload.nbytes + self.index.nbytes + self.escapes.nbytes + META_BYTES

    @property
    def dense_nbytes(self) -> int:
        """Bytes of the BF16 weight."""
        return 2 * self.shape.numel()

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / self.shape.numel()

    @property
    def num_escapes(self) -> int:
        """Weights outside the window, those of raw tiles included. Reads the index."""
        return count_escapes(self.index, self.escapes, self.out_features, self.in_features)

    @property
    def tile_counts(self) -> TileCounts:
        """Clean, listed and raw tiles. Reads the index."""
        return count_tiles(self.index)

    def __repr__(self) -> str:
        return (
            f"PackedWeight({' x '.join(map(str, self.shape))}, base={self.base}, "
            f"bits_per_weight={self.bits_per_weight:.3f}, device={str(self.device)!r})"
        )

    # ---- what it becomes

    def unpack(self) -> Tensor:
        """The exact BF16 weight, bit for bit."""
        from nf12.functional import unpack

        return unpack(self)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PackedWeight:
        """The same weight on another device (itself if it is there already)."""
        return self._map(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PackedWeight:
        """The same weight in page-locked memory."""
        return self._map(lambda t: t.pin_memory())

    def clone(self) -> PackedWeight:
        """A copy that owns contiguous tensors."""
        return self._map(lambda t: t.clone(memory_format=torch.contiguous_format))

    def slice_rows(self, start: int, stop: int) -> PackedWeight:
        """Rows start..stop of W as a view, for tensor parallelism over out_features.

        `start` is a multiple of 16, and so is `stop` unless it is out_features: ValueError else.
        """
        _check_slice("row", start, stop, self.out_features, TILE_ROWS)
        tiles = slice(start // TILE_ROWS, tile_rows(stop))
        payload, index = self.payload[..., tiles, :, :], self.index[..., tiles, :]
        return self.trusted(
            payload, index, self.escapes, stop - start, self.in_features, self.base
        )  # fmt: skip

    def slice_columns(self, start: int, stop: int) -> PackedWeight:
        """Columns start..stop of W as a view, for tensor parallelism over in_features.

        `start` is a multiple of 64, and so is `stop` unless it is in_features: ValueError else.
        """
        _check_slice("column", start, stop, self.in_features, TILE_COLUMNS)
        tiles = slice(start // TILE_COLUMNS, tile_columns(stop))
        payload, index = self.payload[..., tiles, :], self.index[..., tiles]
        return self.trusted(
            payload, index, self.escapes, self.out_features, stop - start, self.base
        )  # fmt: skip

    def slice_experts(self, start: int, stop: int) -> PackedWeight:
        """Experts start..stop of a stack as a view. ValueError for a [N, K] weight."""
        if self.num_experts is None:
            raise ValueError(f"PackedWeight: shape {list(self.shape)} has no experts to slice")
        _check_slice("expert", start, stop, self.num_experts, 1)
        return self.trusted(
            self.payload[start:stop], self.index[start:stop], *self.operands[2:]
        )  # fmt: skip

    def _map(self, move: Callable[[Tensor], Tensor]) -> PackedWeight:
        payload, index, escapes = (move(t) for t in (self.payload, self.index, self.escapes))
        sizes = self.operands[3:]
        return self.trusted(payload, index, escapes, *sizes, cast=self.cast)

    # ---- storage

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The four tensors that a checkpoint holds for a weight called `name`."""
        values = (self.payload, self.index, self.escapes, self.meta)
        return {name + suffix: value for suffix, value in zip(SUFFIXES, values, strict=True)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], name: str) -> PackedWeight:
        """Reads the four tensors of `name`. FormatError names it, and a missing one."""
        missing = [name + suffix for suffix in SUFFIXES if name + suffix not in tensors]
        if missing:
            raise FormatError(f"{name}: the packed weight lacks {', '.join(missing)}")
        try:
            return cls(*(tensors[name + suffix] for suffix in SUFFIXES))
        except FormatError as error:
            raise FormatError(f"{name}: {error}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedWeight, (self.payload, self.index, self.escapes, self.meta)

    def __copy__(self) -> PackedWeight:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedWeight:
        return self._map(lambda t: copy.deepcopy(t, memo))


def _check_slice(what: str, start: int, stop: int, end: int, step: int) -> None:
    if not 0 <= start < stop <= end:
        raise ValueError(f"PackedWeight: {what}s {start}..{stop} are not within 0..{end}")
    for name, value in (("start", start), ("stop", stop)):
        if value % step and value != end:
            raise ValueError(
                f"PackedWeight: {what} {name} is {value}, must be a multiple of {step}"
                + (f" or {end}" if name == "stop" else "")
            )


def meta_integers(meta: Tensor) -> tuple[int, int, int, int]:
    """version, N, K, base of a meta tensor; FormatError unless it is int32 [4]."""
    if meta.dtype != torch.int32 or tuple(meta.shape) != (4,):
        raise FormatError(f"nf12::check: meta: must be int32 [4]: {meta.dtype} {list(meta.shape)}")
    version, out_features, in_features, base = meta.tolist()
    return version, out_features, in_features, base


def check(
    payload: Tensor,
    index: Tensor,
    escapes: Tensor,
    out_features: int,
    in_features: int,
    base: int,
    version: int,
) -> None:
    """Holds a packed weight against every rule of the format; raises FormatError."""
    arguments = (payload, index, escapes, out_features, in_features, base, version)
    devices = {t.device for t in (payload, index, escapes)}
    if len(devices) > 1 or not _backend.has_kernels(payload.device):
        return check_spec(*arguments)
    try:
        torch.ops.nf12.check(*arguments)
    except RuntimeError as error:
        failure = translated(error)
        broken_rule = isinstance(failure, ValueError)
        raise FormatError(str(error)) if broken_rule else failure from None
