"""Comparing two checkpoints byte for byte, each packed weight decoded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nf12.checkpoint.header import DTYPE_BITS, TensorEntry
from nf12.checkpoint.plan import CAST_DTYPES
from nf12.checkpoint.progress import Progress
from nf12.checkpoint.source import CHUNK_BYTES, Checkpoint, open_checkpoint, read_json
from nf12.checkpoint.tensors import bytes_of, cast_to_bf16, same_bytes
from nf12.packed_weight import SUFFIXES


@dataclass(frozen=True)
class Difference:
    """Where two checkpoints differ: a tensor or file, and the first place in it."""

    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


@dataclass
class VerifyReport:
    """Whether the target holds the source: every tensor with its name, dtype, shape and bytes, and
    every other file."""

    source: str
    target: str
    tensors: int = 0
    packed: int = 0
    cast: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    differences: list[Difference] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        differences = [vars(difference) for difference in self.differences]
        return {"identical": self.identical, **vars(self), "differences": differences}


def verify(
    source: str | Path,
    target: str | Path,
    *,
    cast: bool = False,
    revision: str | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Decodes all of `target` and compares it with `source`; either may be packed or dense.

    Args:
        source: a folder, one safetensors file, or a hub id that is in the local cache.
        target: what was converted or unpacked from it.
        cast: compare a packed FP16 or FP32 weight with its rounding to BF16; without it, such a
            weight is a difference.
        revision: branch, tag or commit of a hub id.
        progress: told what is done, in bytes of the source.

    Returns:
        All differences, in the order of the source.

    Raises:
        CheckpointError: one of the two breaks a rule.
        nf12.FormatError: a packed weight breaks a rule of the format.
    """
    begin = time.monotonic()
    first, second = _Decoded(open_checkpoint(source, revision)), _Decoded(open_checkpoint(target))
    report = VerifyReport(str(source), str(target))
    progress = progress or Progress()
    progress.start(sum(entry.nbytes for entry in first.entries.values()))
    for name, entry in first.entries.items():
        if name not in second.entries:
            report.differences.append(Difference(name, "the target does not have this tensor"))
        else:
            difference = _compare(first, second, name, cast, report)
            if difference:
                report.differences.append(Difference(name, difference))
        report.tensors += 1
        report.bytes += entry.nbytes
        progress.advance(name, entry.nbytes)
    for name in second.entries.keys() - first.entries.keys():
        report.differences.append(Difference(name, "the source does not have this tensor"))
    report.packed = len(second.packed)
    _compare_files(first.checkpoint, second.checkpoint, report)
    report.seconds = time.monotonic() - begin
    return report


class _Decoded:
    """A checkpoint seen as the dense one that it stands for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.packed = checkpoint.packed_names()
        inside = {name + suffix for name in self.packed for suffix in SUFFIXES}
        dense = [name for name in checkpoint.shard_of if name not in inside]
        self.entries = {name: checkpoint.dense_entry(name) for name in self.packed}
        self.entries |= {name: checkpoint.entry(name) for name in dense}
        self.entries |= {copy: self.entries[kept] for copy, kept in checkpoint.ties.items()}

    def chunks(self, name: str) -> Iterator[memoryview]:
        """The dense bytes, in pieces of CHUNK_BYTES."""
        name = self.checkpoint.ties.get(name, name)
        if name in self.checkpoint.shard_of:
            yield from self.checkpoint.chunks(name)
            return
        view = bytes_of(self.checkpoint.read_packed(name).unpack())
        for begin in range(0, view.nbytes, CHUNK_BYTES):
            yield view[begin : begin + CHUNK_BYTES]

    def rounded_chunks(self, name: str) -> Iterator[memoryview]:
        """The bytes of an FP16 or FP32 tensor rounded to BF16, in pieces of CHUNK_BYTES."""
        flat = self.checkpoint.read(self.checkpoint.ties.get(name, name)).reshape(-1)
        for part in torch.split(flat, CHUNK_BYTES // 2):
            yield bytes_of(cast_to_bf16(part)[0])


def _compare(
    first: _Decoded, second: _Decoded, name: str, cast: bool, report: VerifyReport
) -> str | None:
    a, b = first.entries[name], second.entries[name]
    chunks = first.chunks
    if a.dtype in CAST_DTYPES and b.dtype == "BF16" and name in second.packed:
        if not cast:
            return f"{a.dtype} in the source, packed after a cast to BF16 (compare with --cast)"
        chunks = first.rounded_chunks
        report.cast.append(name)
    elif a.dtype != b.dtype:
        return f"dtype {a.dtype} in the source, {b.dtype} in the target"
    if a.shape != b.shape:
        return f"shape {list(a.shape)} in the source, {list(b.shape)} in the target"
    begin = 0
    for chunk_a, chunk_b in zip(chunks(name), second.chunks(name), strict=True):
        if not same_bytes(chunk_a, chunk_b):
            return _first_difference(b, begin, chunk_a, chunk_b)
        begin += chunk_a.nbytes
    return None


def _first_difference(
    entry: TensorEntry, begin: int, chunk_a: memoryview, chunk_b: memoryview
) -> str:
    """Index and both values of the first element that differs; `begin` is the chunks' offset."""
    size = max(DTYPE_BITS[entry.dtype] // 8, 1)
    a, b = np.frombuffer(chunk_a, np.uint8), np.frombuffer(chunk_b, np.uint8)
    byte = int(np.argmax(a != b)) // size * size
    at = [int(i) for i in np.unravel_index((begin + byte) // size, entry.shape or (1,))]
    value_a, value_b = (_value(entry.dtype, bytes(c[byte : byte + size])) for c in (a, b))
    return f"first at {at}: {value_a} in the source, {value_b} in the target"


def _value(dtype: str, data: bytes) -> str:
    text = f"0x{int.from_bytes(data, 'little'):0{2 * len(data)}X}"
    kinds = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    if dtype in kinds:
        value = torch.frombuffer(bytearray(data), dtype=kinds[dtype]).item()
        text += f" ({value:.9g})"
    return text


def _compare_files(source: Checkpoint, target: Checkpoint, report: VerifyReport) -> None:
    """Other files byte for byte; config.json by content, without its quantization_config.

    Extra files of the target are none of the source's business.
    """
    if source.is_file or target.is_file:
        return
    there = {other.name: other.path for other in target.others}
    for other in source.others:
        report.files += 1
        path = there.get(other.name)
        if path is None:
            report.differences.append(Difference(other.name, "the target does not have this file"))
        elif other.name == "config.json":
            ignored = ("quantization_config", *(("dtype", "torch_dtype") if report.cast else ()))
            a, b = read_json(other.path), read_json(path)
            for key in a.keys() | b.keys():
                if key not in ignored and a.get(key) != b.get(key):
                    values = f"{a.get(key)!r:.60} in the source, {b.get(key)!r:.60} in the target"
                    what = f"{key} is {values}"
                    report.differences.append(Difference(other.name, what))
        elif (at := _first_differing_byte(other.path, path)) is not None:
            report.differences.append(Difference(other.name, f"the files differ at byte {at}"))


def _first_differing_byte(path_a: Path, path_b: Path) -> int | None:
    begin = 0
    with path_a.open("rb") as a, path_b.open("rb") as b:
        while True:
            chunk_a, chunk_b = a.read(CHUNK_BYTES), b.read(CHUNK_BYTES)
            if chunk_a != chunk_b:
                pairs = zip(chunk_a, chunk_b, strict=False)
                shared = min(len(chunk_a), len(chunk_b))
                return begin + next((i for i, (x, y) in enumerate(pairs) if x != y), shared)
            if not chunk_a:
                return None
            begin += len(chunk_a)
