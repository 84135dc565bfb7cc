"""The safetensors file header: read with every rule checked, or written.

    8 bytes    length of the JSON text, little endian
    JSON text  {"__metadata__": {...}, "name": {"dtype", "shape", "data_offsets"}, ...} + spaces
    data       the tensors without holes; data_offsets count from here

`safetensors.safe_open` gives no offsets and no file name in its errors. A converter needs both: it
copies the tensors that it does not pack byte for byte, whatever their dtype is, and must say which
of many shards is damaged.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nf12.checkpoint.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors package
METADATA_KEY = "__metadata__"

# In ascending order of alignment, as the safetensors package ranks them (data_order).
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
}
_RANK = {dtype: rank for rank, dtype in enumerate(DTYPE_BITS)}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file; `begin` and `end` are bytes from the start of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """A checked header; `tensors` is in the order of the data."""

    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    data_start: int
    digest: str  # sha256 of length word and JSON text


def read_header(path: Path) -> Header:
    """Reads and checks the header of the safetensors file `path`.

    Raises CheckpointError naming file, rule and value where the header breaks a rule.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length, text = _read_text(file, size, path)
    document = _parse(text, path)
    metadata = _metadata(document.pop(METADATA_KEY, {}), path)
    entries = [_entry(name, value, path) for name, value in document.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    _check_cover(entries, size - 8 - length, path)
    digest = hashlib.sha256(length.to_bytes(8, "little") + text).hexdigest()
    return Header({entry.name: entry for entry in entries}, metadata, 8 + length, digest)


def _read_text(file: BinaryIO, size: int, path: Path) -> tuple[int, bytes]:
    if size < 8:
        raise CheckpointError(f"{path}: truncated: {size} bytes, the header length alone takes 8")
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path}: header length {length} is over the limit of {MAX_HEADER_BYTES} bytes"
        )
    if length > size - 8:
        raise CheckpointError(
            f"{path}: truncated: header length {length}, but only {size - 8} bytes follow it"
        )
    return length, file.read(length)


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise CheckpointError(f"{path}: the header names {key!r} twice")
            seen[key] = value
        return seen

    try:
        document = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise CheckpointError(
            f"{path}: the header is a JSON {type(document).__name__}, not an object"
        )
    return document


def _metadata(value: Any, path: Path) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise CheckpointError(f"{path}: {METADATA_KEY} must map strings to strings: {value!r:.80}")
    return value


def _entry(name: str, value: Any, path: Path) -> TensorEntry:
    where = f"{path}: tensor {name!r}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(
            f"{where}: an entry holds exactly dtype, shape and data_offsets, found {value!r:.80}"
        )
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(f"{where}: unknown dtype {dtype!r:.40}")
    if not _is_sizes(shape):
        raise CheckpointError(f"{where}: shape must be a list of sizes >= 0, found {shape!r:.80}")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(
            f"{where}: data_offsets must be [begin, end] with begin <= end, found {offsets!r:.80}"
        )
    begin, end = offsets
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits != 8 * (end - begin):
        raise CheckpointError(
            f"{where}: {dtype} of shape {shape!r:.80} takes {bits / 8:.15g} bytes,"
            f" data_offsets hold {end - begin}"
        )
    return TensorEntry(name, dtype, tuple(shape), begin, end)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in value)


def _check_cover(entries: list[TensorEntry], data_bytes: int, path: Path) -> None:
    """Tensors must cover the data once: no overlap, no hole, nothing missing at the end."""
    position = 0
    for entry in entries:
        if entry.begin != position:
            fault = "overlaps the tensor before it" if entry.begin < position else "leaves a hole"
            raise CheckpointError(
                f"{path}: tensor {entry.name!r} {fault}: begins at {entry.begin},"
                f" the data so far end at {position}"
            )
        position = entry.end
    if position != data_bytes:
        fault = "truncated" if position > data_bytes else "bytes after the last tensor"
        raise CheckpointError(
            f"{path}: {fault}: the tensors take {position} bytes, the file holds {data_bytes}"
        )


def render_header(
    tensors: list[TensorEntry], metadata: Mapping[str, str], length: int = 0
) -> bytes:
    """Length word and JSON text as the safetensors package writes them, padded with spaces.

    The text takes at least `length` bytes, so that it can be written after the data.
    """
    document: dict[str, Any] = {METADATA_KEY: dict(metadata)} if metadata else {}
    for entry in tensors:
        document[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [entry.begin, entry.end],
        }
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text = text.ljust(max(length, -(-len(text) // 8) * 8))
    return len(text).to_bytes(8, "little") + text


def data_order(entry: TensorEntry) -> tuple[int, str]:
    """The safetensors package's order of the data: widest elements first, then by name.

    It keeps each tensor aligned to its element size, which readers that map the file rely on.
    """
    return (-_RANK[entry.dtype], entry.name)
