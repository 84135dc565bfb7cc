"""Checkpoints to read: a folder, one safetensors file, or a hub id that is already in the cache."""

from __future__ import annotations

import json
import math
import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nf12.checkpoint.errors import CheckpointError
from nf12.checkpoint.header import Header, TensorEntry, read_header
from nf12.checkpoint.tensors import TORCH_DTYPES
from nf12.packed_weight import SUFFIXES, PackedWeight, meta_integers
from nf12.packing import FormatError, tile_columns, tile_rows

INDEX_SUFFIX = ".safetensors.index.json"
# What loaders look for in a folder that holds several checkpoints.
USUAL_STEMS = ("model", "diffusion_pytorch_model", "adapter_model")
# Version control and download bookkeeping: not part of a checkpoint, and large.
IGNORED_FOLDERS = frozenset((".git", ".cache"))
CHUNK_BYTES = 8 << 20
# Metadata of a written file: JSON object from the name of a copy to the name that is stored.
TIES_KEY = "nf12_tied"


class Shard:
    """One safetensors file. Tensors are mapped one by one and unmapped with their last reference,
    so that reading takes no anonymous memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Header = read_header(path)

    def read(self, name: str) -> Tensor:
        """The tensor `name`, mapped copy-on-write from the file."""
        entry = self.header.tensors[name]
        dtype = TORCH_DTYPES.get(entry.dtype)
        if dtype is None:
            raise CheckpointError(f"{self.path}: tensor {name!r}: {entry.dtype} is not a weight")
        if entry.numel == 0:
            return torch.empty(entry.shape, dtype=dtype)
        mapped, start = self._map(entry)
        if start % dtype.itemsize:  # only files that no current writer makes
            mapped, start = bytearray(mapped[start:]), 0
        flat = torch.frombuffer(mapped, dtype=dtype, count=entry.numel, offset=start)
        return flat.reshape(entry.shape)

    def chunks(self, name: str) -> Iterator[memoryview]:
        """The bytes of the tensor `name`, in order, whatever its dtype is."""
        entry = self.header.tensors[name]
        if entry.nbytes == 0:
            return
        mapped, start = self._map(entry)
        view = memoryview(mapped)[start:]
        for begin in range(0, entry.nbytes, CHUNK_BYTES):
            yield view[begin : begin + CHUNK_BYTES]

    def _map(self, entry: TensorEntry) -> tuple[Any, int]:
        begin = self.header.data_start + entry.begin
        start = begin % mmap.ALLOCATIONGRANULARITY
        with self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < begin + entry.nbytes:
                raise CheckpointError(
                    f"{self.path}: truncated while it was read: tensor {entry.name!r}"
                    f" ends at byte {begin + entry.nbytes}"
                )
            mapped = mmap.mmap(
                file.fileno(), entry.nbytes + start, offset=begin - start, access=mmap.ACCESS_COPY
            )
        return mapped, start


@dataclass(frozen=True)
class OtherFile:
    """A file of the folder that holds no tensors of the checkpoint."""

    name: str  # relative, with /
    path: Path


class Checkpoint:
    """A checkpoint opened for reading, every header checked.

    Attributes:
        path: the folder or file.
        stem: "model" for model.safetensors and model-00001-of-00002.safetensors.
        shards: by file name, in the order of the names.
        shard_of: file name by tensor name, in the order of files and of the data in them.
        index: the index file's document, or None for a single file.
        ties: name of a tied copy that is not stored, to the name that is.
        others: every other file; empty where `path` is one file.
        config: config.json's document, or None.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_file = path.is_file()
        self.index: dict[str, Any] | None = None
        self.index_name: str | None = None
        self.folder = path.parent if self.is_file else path
        names = [path.name] if self.is_file else self._find_weights()
        self.shards = {name: Shard(self.folder / name) for name in names}
        self.shard_of: dict[str, str] = {}
        for file_name, shard in self.shards.items():
            for tensor in shard.header.tensors:
                if tensor in self.shard_of:
                    raise CheckpointError(
                        f"{path}: tensor {tensor!r} is in two shards:"
                        f" {self.shard_of[tensor]} and {file_name}"
                    )
                self.shard_of[tensor] = file_name
        self._check_index()
        self.ties = self._read_ties()
        self.others = [] if self.is_file else list(self._walk(self.folder, "", ()))
        self.config = self._read_config()

    @property
    def stem(self) -> str:
        if self.index_name is not None:
            return self.index_name.removesuffix(INDEX_SUFFIX)
        return next(iter(self.shards)).removesuffix(".safetensors")

    def entry(self, name: str) -> TensorEntry:
        return self.shards[self.shard_of[name]].header.tensors[name]

    def read(self, name: str) -> Tensor:
        return self.shards[self.shard_of[name]].read(name)

    def chunks(self, name: str) -> Iterator[memoryview]:
        return self.shards[self.shard_of[name]].chunks(name)

    def packed_names(self) -> list[str]:
        """Names of the packed weights, each complete.

        Two or more of a name's four suffixes make it a packed weight; one alone is a plain tensor
        that happens to be called so.
        """
        found: dict[str, set[str]] = {}
        for name in self.shard_of:
            suffix = next((s for s in SUFFIXES if name.endswith(s)), None)
            if suffix is not None:
                found.setdefault(name.removesuffix(suffix), set()).add(suffix)
        packed = {name: suffixes for name, suffixes in found.items() if len(suffixes) > 1}
        for name, suffixes in packed.items():
            missing = [name + suffix for suffix in SUFFIXES if suffix not in suffixes]
            if missing:
                raise CheckpointError(
                    f"{self.path}: packed weight {name!r} lacks {', '.join(missing)}"
                )
            if name in self.shard_of:
                raise CheckpointError(f"{self.path}: {name!r} is there both packed and dense")
        return list(packed)

    def dense_entry(self, name: str) -> TensorEntry:
        """The tensor that the packed weight `name` decodes to, its size only.

        Raises nf12.FormatError where the four integers do not fit the payload's tiles, so that
        nothing is planned for sizes out of thin air. The rest of the check is `read_packed`'s.
        """
        tiles = self.entry(name + "_payload").shape
        try:
            _, n, k, _ = meta_integers(self.read(name + "_meta"))
        except FormatError as error:
            raise FormatError(f"{name}: {error}") from None
        if (tile_rows(n), tile_columns(k)) != tiles[-3:-1] or len(tiles) not in (3, 4):
            raise FormatError(
                f"{name}: nf12::check: meta: a weight [{n}, {k}] does not fill a payload"
                f" {list(tiles)}"
            )
        shape = (*tiles[:-3], n, k)
        return TensorEntry(name, "BF16", shape, 0, 2 * math.prod(shape))

    def read_packed(self, name: str) -> PackedWeight:
        """The packed weight `name`, checked against every rule of the format.

        Raises nf12.FormatError naming the tensor, the rule and the value.
        """
        tensors = {name + suffix: self.read(name + suffix) for suffix in SUFFIXES}
        return PackedWeight.from_tensors(tensors, name)

    def fingerprint(self) -> list[list[Any]]:
        """Names, sizes, times and header hashes: equal only while no file was touched."""
        files: list[tuple[str, Path, str]] = [
            (name, shard.path, shard.header.digest) for name, shard in self.shards.items()
        ]
        if self.index_name is not None:
            files.append((self.index_name, self.folder / self.index_name, ""))
        files += [(other.name, other.path, "") for other in self.others]
        stats = [(name, path.stat(), digest) for name, path, digest in files]
        return [[name, stat.st_size, stat.st_mtime_ns, digest] for name, stat, digest in stats]

    def _find_weights(self) -> list[str]:
        names = sorted(p.name for p in self.folder.iterdir())
        indices = [name for name in names if name.endswith(INDEX_SUFFIX)]
        files = [name for name in names if name.endswith(".safetensors")]
        for stem in USUAL_STEMS:
            if stem + INDEX_SUFFIX in indices:
                shards = self._read_index(stem + INDEX_SUFFIX)
                # Loaders disagree on which of the two counts.
                if stem + ".safetensors" in files and stem + ".safetensors" not in shards:
                    raise CheckpointError(
                        f"{self.folder}: {stem}.safetensors and {stem}{INDEX_SUFFIX}, which names"
                        " other files, are two checkpoints: pass the file, or remove one"
                    )
                return shards
            if stem + ".safetensors" in files:
                return [stem + ".safetensors"]
        if len(indices) == 1:
            return self._read_index(indices[0])
        if not indices and len(files) == 1:
            return files
        if not files:
            raise CheckpointError(self._no_weights(names))
        raise CheckpointError(
            f"{self.folder}: several safetensors files and no index that says how they belong"
            f" together: {', '.join(indices or files)}"
        )

    def _no_weights(self, names: list[str]) -> str:
        pickled = [n for n in names if n.endswith((".bin", ".pt", ".pth"))]
        if pickled:
            return (
                f"{self.folder}: only pickled weights ({pickled[0]}): loading them runs code from"
                " the file, so nf12 reads safetensors only; save the model once with"
                " save_pretrained"
            )
        below = sorted({p.parent.name for p in self.folder.glob("*/*.safetensors")})
        hint = f"; its folders {', '.join(below)} do, convert each of them" if below else ""
        return f"{self.folder}: no safetensors file{hint}"

    def _read_index(self, index_name: str) -> list[str]:
        document = read_json(self.folder / index_name)
        weight_map = document.get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{self.folder / index_name}: weight_map is missing or empty")
        for tensor, name in weight_map.items():
            # A name with a folder in it could make us read, and later write, anywhere.
            if not isinstance(name, str) or not re.fullmatch(r"[^/\\\0]+\.safetensors", name):
                raise CheckpointError(
                    f"{self.folder / index_name}: tensor {tensor!r}: {name!r:.80} is not the name"
                    " of a safetensors file beside the index"
                )
        shards = sorted(set(weight_map.values()))
        missing = [name for name in shards if not (self.folder / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{self.folder}: missing shard {missing[0]} ({len(missing)} of {len(shards)} named"
                f" by {index_name} are not there)"
            )
        self.index, self.index_name = document, index_name
        return shards

    def _check_index(self) -> None:
        if self.index is None:
            return
        where = self.folder / str(self.index_name)
        weight_map: dict[str, str] = self.index["weight_map"]
        for tensor, shard in weight_map.items():
            actual = self.shard_of.get(tensor)
            if actual != shard:
                place = "no shard has it" if actual is None else f"it is in {actual}"
                raise CheckpointError(f"{where}: tensor {tensor!r} should be in {shard}, {place}")
        for tensor, shard in self.shard_of.items():
            if tensor not in weight_map:
                raise CheckpointError(f"{where}: tensor {tensor!r} of {shard} is not in the index")

    def _read_ties(self) -> dict[str, str]:
        ties: dict[str, str] = {}
        stored = {*self.shard_of, *self.packed_names()}
        for shard in self.shards.values():
            text = shard.header.metadata.get(TIES_KEY, "{}")
            try:
                document = json.loads(text)
            except (ValueError, RecursionError):
                document = None
            if not isinstance(document, dict):
                raise CheckpointError(f"{shard.path}: metadata {TIES_KEY} is not a JSON object")
            for copy, kept in document.items():
                if copy in stored or not isinstance(kept, str) or kept not in stored:
                    raise CheckpointError(
                        f"{shard.path}: metadata {TIES_KEY}: {copy!r} should be a copy that is not"
                        f" stored, of {kept!r:.80}, which is"
                    )
                ties[copy] = kept
        return ties

    def _walk(self, folder: Path, prefix: str, parents: tuple[str, ...]) -> Iterator[OtherFile]:
        real = os.path.realpath(folder)
        if real in parents:
            raise CheckpointError(f"{folder}: a symbolic link to a folder around it: {real}")
        for path in sorted(folder.iterdir()):
            name = prefix + path.name
            if path.is_dir():
                if path.name not in IGNORED_FOLDERS:
                    yield from self._walk(path, name + "/", (*parents, real))
            elif not path.exists():
                raise CheckpointError(f"{path}: a symbolic link to nothing: {os.readlink(path)}")
            elif not path.is_file():
                raise CheckpointError(f"{path}: not a regular file")
            elif name not in self.shards and name != self.index_name:
                yield OtherFile(name, path)

    def _read_config(self) -> dict[str, Any] | None:
        if self.is_file or not (self.folder / "config.json").is_file():
            return None
        return read_json(self.folder / "config.json")


def open_checkpoint(source: str | Path, revision: str | None = None) -> Checkpoint:
    """Opens `source`: a folder, one safetensors file, or a hub id found in the local cache.

    Raises CheckpointError where it is none of them or breaks a rule of the file format.
    """
    path = Path(source)
    if not path.exists():
        path = _cached_snapshot(str(source), revision)
    elif path.is_file() and path.suffix != ".safetensors":
        raise CheckpointError(f"{path}: not a safetensors file: the name ends in {path.suffix!r}")
    return Checkpoint(path)


def _cached_snapshot(source: str, revision: str | None) -> Path:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source, re.ASCII) or source.startswith("."):
        raise CheckpointError(f"{source}: no such file or folder")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        raise CheckpointError(
            f"{source}: no such file or folder, and huggingface_hub, which knows the cache of hub"
            " ids, is not installed"
        ) from None
    try:
        return Path(snapshot_download(source, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):
        raise CheckpointError(
            f"{source}: no such file or folder, and no hub id of that name in the local cache;"
            " nf12 downloads nothing: fetch it first, for example with `hf download`"
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises CheckpointError where there is none."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path}: a JSON {type(document).__name__}, not an object")
    return document
