"""What a conversion will do, known from headers alone: no weight is read, but for tied copies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations

from nf12.checkpoint.errors import CheckpointError
from nf12.checkpoint.header import TensorEntry, data_order
from nf12.checkpoint.source import Checkpoint
from nf12.checkpoint.tensors import same_bytes
from nf12.packed_weight import META_BYTES, SUFFIXES
from nf12.packing import TILE_BYTES, tile_columns, tile_rows

CAST_DTYPES = ("F16", "F32")


@dataclass(frozen=True)
class TensorPlan:
    """One tensor of the source. `reason` says why it stays dense, and is empty if it is packed."""

    entry: TensorEntry
    reason: str

    @property
    def packs(self) -> bool:
        return not self.reason

    @property
    def casts(self) -> bool:
        return self.packs and self.entry.dtype in CAST_DTYPES

    @property
    def least_bytes(self) -> int:
        """Bytes that the target takes at least: a packed weight without its side table."""
        return least_packed_bytes(self.entry) if self.packs else self.entry.nbytes


@dataclass(frozen=True)
class ShardPlan:
    """One file to write: the weights to pack in source order, then the dense tensors."""

    file_name: str
    packed: tuple[TensorPlan, ...]
    dense: tuple[TensorPlan, ...]


@dataclass(frozen=True)
class Plan:
    """All files to write. `ties` maps the name of a copy to the name that is stored instead."""

    tensors: tuple[TensorPlan, ...]
    shards: tuple[ShardPlan, ...]
    ties: dict[str, str]
    stem: str

    @property
    def source_bytes(self) -> int:
        return sum(tensor.entry.nbytes for tensor in self.tensors)

    @property
    def least_bytes(self) -> int:
        return sum(tensor.least_bytes for tensor in self.tensors)


def make_plan(
    source: Checkpoint,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    cast: bool = False,
    max_shard_bytes: int | None = None,
) -> Plan:
    """Decides per tensor and cuts the shards.

    Without `max_shard_bytes` the target has the files of the source. With it, shards are cut by
    dense bytes, so that no shard can turn out larger (a single larger tensor has its own).

    Raises CheckpointError where the source is packed already, or a name would be taken twice.
    """
    _refuse_quantized(source)
    ties = find_ties(source)
    tensors = [
        TensorPlan(entry, _reason_dense(entry, include, exclude, cast))
        for entry in map(source.entry, source.shard_of)
        if entry.name not in ties
    ]
    _refuse_collisions(tensors, source)
    stem = source.stem if max_shard_bytes is None else re.sub(r"-\d+-of-\d+$", "", source.stem)
    groups = list(
        _as_in_source(tensors, source)
        if max_shard_bytes is None
        else _cut(tensors, max_shard_bytes, stem)
    )
    return Plan(tuple(tensors), tuple(_shard(*group) for group in groups), ties, stem)


def least_packed_bytes(entry: TensorEntry) -> int:
    """Payload, index and meta of a weight [N, K] or [X, N, K], in bytes."""
    *experts, n, k = entry.shape
    tiles = math.prod(experts) * tile_rows(n) * tile_columns(k)
    return tiles * (TILE_BYTES + 4) + META_BYTES


def packed_entries(entry: TensorEntry, quads: int) -> list[TensorEntry]:
    """The four tensors of a packed weight, in the order they are written, at offset 0."""
    *experts, n, k = entry.shape
    tiles = (*experts, tile_rows(n), tile_columns(k))
    shapes = {
        "_payload": ("U8", (*tiles, TILE_BYTES)),
        "_escapes": ("I32", (4 * quads,)),
        "_meta": ("I32", (4,)),
        "_index": ("I32", tiles),
    }
    return [TensorEntry(entry.name + s, dtype, shape, 0, 0) for s, (dtype, shape) in shapes.items()]


def find_ties(source: Checkpoint) -> dict[str, str]:
    """Output embeddings stored beside input embeddings that the config says they are tied to.

    A safetensors file cannot share bytes between two names, and most savers drop the copy. Where
    one was kept, the target stores the weight once; loaders tie it again, because the config says
    so, and `nf12 unpack` restores the copy.
    """
    rows = _tied_rows(source)
    tables = [
        entry
        for entry in map(source.entry, source.shard_of)
        if len(entry.shape) == 2 and entry.shape[0] in rows
    ]
    ties = {}
    for pair in combinations(tables, 2):
        inputs = [e.name for e in pair if re.search("embed|wte|shared", e.name)]
        outputs = [e.name for e in pair if e.name not in inputs]
        if len(inputs) == len(outputs) == 1 and _same_bytes(source, *pair):
            ties[outputs[0]] = inputs[0]
    return ties


def _tied_rows(source: Checkpoint) -> set[int]:
    config = source.config or {}
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    return {
        part["vocab_size"]
        for part in parts
        if part.get("tie_word_embeddings") is True and isinstance(part.get("vocab_size"), int)
    }


def _same_bytes(source: Checkpoint, a: TensorEntry, b: TensorEntry) -> bool:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    pairs = zip(source.chunks(a.name), source.chunks(b.name), strict=True)
    return all(same_bytes(*pair) for pair in pairs)


def is_chosen(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether `name` matches one of `include`, if there are any, and none of `exclude`."""
    matches = [fnmatchcase(name, pattern) for pattern in include]
    return (any(matches) or not include) and not any(fnmatchcase(name, p) for p in exclude)


def _reason_dense(
    entry: TensorEntry, include: Sequence[str], exclude: Sequence[str], cast: bool
) -> str:
    if not is_chosen(entry.name, include, exclude):
        return "not chosen by --include and --exclude"
    if len(entry.shape) not in (2, 3):
        return f"rank {len(entry.shape)}"
    if entry.dtype in CAST_DTYPES and not cast:
        return f"{entry.dtype}, would need the cast to BF16"
    if entry.dtype not in ("BF16", *CAST_DTYPES):
        return f"dtype {entry.dtype}"
    if entry.numel == 0 or least_packed_bytes(entry) >= 2 * entry.numel:
        return "would not shrink"
    return ""


def _refuse_quantized(source: Checkpoint) -> None:
    config = source.config or {}
    for name, part in [("", config), *config.items()]:
        found = part.get("quantization_config") if isinstance(part, dict) else None
        if found:
            where = f"{name}.quantization_config" if name else "quantization_config"
            method = found.get("quant_method") if isinstance(found, dict) else found
            raise CheckpointError(
                f"{source.path}: config.json has {where} with quant_method {method!r}:"
                " the source must not be quantized"
            )
    packed = source.packed_names()
    if packed:
        raise CheckpointError(f"{source.path}: {packed[0]!r} is packed already")


def _refuse_collisions(tensors: list[TensorPlan], source: Checkpoint) -> None:
    for tensor in tensors:
        for suffix in SUFFIXES if tensor.packs else ():
            if tensor.entry.name + suffix in source.shard_of:
                raise CheckpointError(
                    f"{source.path}: name collision: packing {tensor.entry.name!r} makes"
                    f" {tensor.entry.name + suffix!r}, which the source has already;"
                    f" exclude {tensor.entry.name!r}"
                )


def _as_in_source(
    tensors: list[TensorPlan], source: Checkpoint
) -> Iterator[tuple[str, list[TensorPlan]]]:
    for file_name in source.shards:
        group = [t for t in tensors if source.shard_of[t.entry.name] == file_name]
        if group or len(source.shards) == 1:
            yield file_name, group


def _cut(
    tensors: list[TensorPlan], max_shard_bytes: int, stem: str
) -> Iterator[tuple[str, list[TensorPlan]]]:
    groups: list[list[TensorPlan]] = [[]]
    filled = 0
    for tensor in tensors:
        if groups[-1] and filled + tensor.entry.nbytes > max_shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += tensor.entry.nbytes
    for number, group in enumerate(groups, 1):
        part = f"-{number:05}-of-{len(groups):05}" if len(groups) > 1 else ""
        yield f"{stem}{part}.safetensors", group


def _shard(file_name: str, tensors: list[TensorPlan]) -> ShardPlan:
    dense = sorted((t for t in tensors if not t.packs), key=lambda t: data_order(t.entry))
    return ShardPlan(file_name, tuple(t for t in tensors if t.packs), tuple(dense))
