"""What conversion and unpacking do alike around the tensors: the target's path, index and files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nf12.checkpoint.errors import CheckpointError
from nf12.checkpoint.header import read_header
from nf12.checkpoint.progress import Progress
from nf12.checkpoint.source import CHUNK_BYTES, INDEX_SUFFIX, Checkpoint
from nf12.checkpoint.staging import Staging


def resolve_target(source: Checkpoint, target: str | Path, files: int) -> tuple[Path, bool]:
    """The target's real path, and whether it is one file and not a folder.

    Raises CheckpointError where it lies in the source or around it.
    """
    path = Path(os.path.realpath(target))
    from_path = Path(os.path.realpath(source.path))
    if path == from_path:
        raise CheckpointError(f"{target}: the target is the source")
    if from_path in path.parents:
        raise CheckpointError(f"{target}: the target lies inside the source {source.path}")
    if path in from_path.parents:
        raise CheckpointError(f"{target}: the source {source.path} lies inside the target")
    single_file = path.suffix == ".safetensors"
    if single_file and not source.is_file:
        raise CheckpointError(f"{target}: the source is a folder, so the target must be one too")
    if single_file and files != 1:
        raise CheckpointError(f"{target}: {files} files to write, so the target must be a folder")
    return path, single_file


def check_space(target: Path, least_bytes: int) -> None:
    """Refuses early what cannot end well. Raises OSError as a full disk does."""
    folder = target.parent
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if least_bytes > free:
        raise CheckpointError(
            f"{target}: the disk has {free} bytes free, the target takes at least {least_bytes}"
        )


def write_index(staging: Staging, source: Checkpoint, files: Sequence[str], stem: str) -> None:
    """Writes the index of the finished files, where the source has one or files are several."""
    if source.index is None and len(files) < 2:
        return
    weight_map = {}
    total_size = 0
    for name in files:
        for entry in read_header(staging.tree / name).tensors.values():
            weight_map[entry.name] = name
            total_size += entry.nbytes
    metadata = (source.index or {}).get("metadata")
    document = {
        "metadata": {
            **(metadata if isinstance(metadata, dict) else {}),
            "total_size": total_size,
        },
        "weight_map": dict(sorted(weight_map.items())),
    }
    staging.write_file(stem + INDEX_SUFFIX, [json_text(document)], 0o644)


def left_to_copy(staging: Staging, source: Checkpoint) -> int:
    """Bytes of the other files that no earlier run has copied."""
    left = [other for other in source.others if not staging.is_done(other.name)]
    return sum(other.path.stat().st_size for other in left)


def copy_others(
    staging: Staging, source: Checkpoint, config: bytes | None, progress: Progress
) -> None:
    """Copies every other file, what symbolic links point to in their place; `config` replaces
    config.json."""
    for other in source.others:
        if staging.is_done(other.name):
            continue
        mode = other.path.stat().st_mode & 0o777
        chunks = [config] if config and other.name == "config.json" else _read(other.path)
        staging.write_file(other.name, chunks, mode)
        progress.advance(other.name, other.path.stat().st_size)


def refuse_changed(source: Checkpoint, fingerprint: list[Any]) -> None:
    if source.fingerprint() != fingerprint:
        raise CheckpointError(
            f"{source.path}: changed while it was read; pass --restart to begin again"
        )


def json_text(document: dict[str, Any]) -> bytes:
    """As transformers writes config.json and the index."""
    return (json.dumps(document, indent=2) + "\n").encode()


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
