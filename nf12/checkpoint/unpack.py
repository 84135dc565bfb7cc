"""The original checkpoint back: each packed weight decoded, everything else copied."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from nf12.checkpoint.errors import CheckpointError
from nf12.checkpoint.header import TensorEntry, data_order, render_header
from nf12.checkpoint.progress import Progress
from nf12.checkpoint.source import TIES_KEY, Checkpoint, open_checkpoint
from nf12.checkpoint.staging import Part, ShardWriter, Staging
from nf12.checkpoint.target import (
    check_space,
    copy_others,
    json_text,
    left_to_copy,
    refuse_changed,
    resolve_target,
    write_index,
)
from nf12.checkpoint.tensors import bytes_of
from nf12.packed_weight import SUFFIXES


@dataclass(frozen=True)
class UnpackReport:
    """What was unpacked."""

    source: str
    target: str
    unpacked: int  # weights
    tensors: int
    bytes: int
    seconds: float


def unpack(
    source: str | Path,
    target: str | Path,
    *,
    restart: bool = False,
    progress: Progress | None = None,
) -> UnpackReport:
    """Writes the dense checkpoint that `source` was converted from.

    Every tensor comes back with its name, dtype, shape and bytes, in the files it came from
    (weights that were cast come back as BF16). Files that the safetensors package had written come
    back byte for byte. config.json loses its quantization_config.

    Raises:
        CheckpointError: the source breaks a rule, or the target exists.
        nf12.FormatError: a packed weight breaks a rule of the format.
        OSError: reading or writing failed; what is done is kept, and a rerun resumes.
    """
    begin = time.monotonic()
    checkpoint = open_checkpoint(source)
    packed = checkpoint.packed_names()
    if not packed:
        raise CheckpointError(f"{checkpoint.path}: holds no packed weight")
    layout = _layout(checkpoint, packed)
    path, single_file = resolve_target(checkpoint, target, len(layout))
    entries = [entry for group in layout.values() for entry in group]
    total = sum(entry.nbytes for entry in entries)
    job: dict[str, Any] = {
        "operation": "unpack",
        "source": checkpoint.fingerprint(),
        "single_file": single_file,
    }
    progress = progress or Progress()
    with Staging(path, job, restart=restart) as staging:
        done = _done_bytes(staging, layout)
        if not staging.already_published:
            left = left_to_copy(staging, checkpoint)
            check_space(path, total - done + left)
            progress.start(total + left, done)
            for file_name, group in layout.items():
                if not staging.is_done(file_name):
                    _write_shard(staging, checkpoint, file_name, group, progress)
            write_index(staging, checkpoint, list(layout), checkpoint.stem)
            copy_others(staging, checkpoint, _dense_config(checkpoint), progress)
            refuse_changed(checkpoint, job["source"])
        staging.publish()
    seconds = time.monotonic() - begin
    return UnpackReport(str(source), str(target), len(packed), len(entries), total, seconds)


def _layout(source: Checkpoint, packed: list[str]) -> dict[str, list[TensorEntry]]:
    """The dense tensors of each file, in the order they are written: tied copies beside the
    tensor that was kept."""
    home = {name: source.shard_of[name + "_payload"] for name in packed}
    inside = {name + suffix for name in packed for suffix in SUFFIXES}
    entries = {name: source.dense_entry(name) for name in packed}
    for name, file_name in source.shard_of.items():
        if name not in inside:
            entries[name], home[name] = source.entry(name), file_name
    for copy, kept in source.ties.items():
        entries[copy], home[copy] = replace(entries[kept], name=copy), home[kept]
    ordered = sorted(entries.values(), key=data_order)
    return {file: [e for e in ordered if home[e.name] == file] for file in source.shards}


def _done_bytes(staging: Staging, layout: dict[str, list[TensorEntry]]) -> int:
    done = {record["tensor"] for name in layout for record in staging.records(name)}
    return sum(entry.nbytes for group in layout.values() for entry in group if entry.name in done)


def _write_shard(
    staging: Staging,
    source: Checkpoint,
    file_name: str,
    entries: list[TensorEntry],
    progress: Progress,
) -> None:
    metadata = dict(source.shards[file_name].header.metadata)
    metadata.pop(TIES_KEY, None)
    ends = list(accumulate(entry.nbytes for entry in entries))
    final = [
        replace(entry, begin=end - entry.nbytes, end=end)
        for entry, end in zip(entries, ends, strict=True)
    ]
    done = {record["tensor"] for record in staging.records(file_name)}
    with ShardWriter(staging, file_name, len(render_header(final, metadata))) as writer:
        for entry in entries:
            if entry.name not in done:
                chunks = _dense_bytes(source, source.ties.get(entry.name, entry.name))
                writer.append(entry.name, [Part(entry.name, entry.dtype, entry.shape, chunks)], {})
                progress.advance(entry.name, entry.nbytes)
        writer.finish(metadata)


def _dense_bytes(source: Checkpoint, name: str) -> Iterator[memoryview]:
    if name in source.shard_of:
        yield from source.chunks(name)
    else:
        yield bytes_of(source.read_packed(name).unpack())


def _dense_config(source: Checkpoint) -> bytes | None:
    if source.config is None:
        return None
    return json_text({k: v for k, v in source.config.items() if k != "quantization_config"})
