"""Loading a checkpoint's tensors as they are stored."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file as load_safetensors
from torch import Tensor

from nf12.checkpoint.source import Checkpoint, open_checkpoint
from nf12.packed_weight import SUFFIXES, PackedWeight


def load_file(path: str | Path) -> dict[str, Tensor | PackedWeight]:
    """All tensors of a checkpoint by name, the packed ones as checked `PackedWeight`s.

    `path` is a safetensors file, a folder, or a hub id that is in the local cache. A tied copy
    that was stored once is the same object under both names.

    Raises:
        CheckpointError: the files break a rule.
        nf12.FormatError: a packed weight breaks a rule of the format.
    """
    checkpoint: Checkpoint = open_checkpoint(path)
    tensors: dict[str, Tensor] = {}
    for shard in checkpoint.shards.values():
        tensors |= load_safetensors(shard.path)
    loaded: dict[str, Tensor | PackedWeight] = dict(tensors)
    for name in checkpoint.packed_names():
        loaded[name] = PackedWeight.from_tensors(tensors, name)
        for suffix in SUFFIXES:
            del loaded[name + suffix]
    for copy, kept in checkpoint.ties.items():
        loaded[copy] = loaded[kept]
    return loaded
