"""What the format makes of a checkpoint: bits a weight, escapes and exponents per tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nf12.checkpoint.plan import is_chosen, make_plan
from nf12.checkpoint.progress import Progress
from nf12.checkpoint.source import Checkpoint, open_checkpoint
from nf12.functional import pack
from nf12.packed_weight import SUFFIXES, PackedWeight
from nf12.packing import WINDOW

EXPONENTS = 256
HISTOGRAM_CHUNK = 1 << 20

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WeightStats:
    """One packed weight. `exponents[e]` counts the weights with biased exponent e."""

    name: str
    shape: tuple[int, ...]
    bytes: int
    base: int
    escapes: int
    clean_tiles: int
    listed_tiles: int
    raw_tiles: int
    exponents: Counts

    @property
    def weights(self) -> int:
        return int(self.exponents.sum())

    @property
    def escape_rate(self) -> float:
        return self.escapes / self.weights

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.bytes / self.weights

    @property
    def is_coded(self) -> npt.NDArray[np.bool_]:
        """Which of the 256 exponents lie in the window."""
        exponents = np.arange(EXPONENTS)
        return (self.base <= exponents) & (exponents < self.base + WINDOW)

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "shape": list(self.shape),
            "exponents": self.exponents.tolist(),
            "escape_rate": self.escape_rate,
            "bits_per_weight": self.bits_per_weight,
        }


@dataclass
class InspectReport:
    """A whole checkpoint. `planned`: it is dense, and the figures are what packing would give."""

    path: str
    planned: bool
    weights: list[WeightStats] = field(default_factory=list)
    dense_tensors: int = 0
    dense_bytes: int = 0

    @property
    def exponents(self) -> Counts:
        total = np.zeros(EXPONENTS, np.int64)
        for weight in self.weights:
            total += weight.exponents
        return total

    @property
    def bytes(self) -> int:
        return sum(w.bytes for w in self.weights) + self.dense_bytes

    @property
    def escape_rate(self) -> float | None:
        total = sum(w.weights for w in self.weights)
        return sum(w.escapes for w in self.weights) / total if total else None

    @property
    def bits_per_weight(self) -> float | None:
        total = sum(w.weights for w in self.weights)
        return 8 * sum(w.bytes for w in self.weights) / total if total else None

    @property
    def worst(self) -> list[WeightStats]:
        """By escape rate, the highest first."""
        return sorted(self.weights, key=lambda w: -w.escape_rate)

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "planned": self.planned,
            "bytes": self.bytes,
            "bits_per_weight": self.bits_per_weight,
            "escape_rate": self.escape_rate,
            "dense_tensors": self.dense_tensors,
            "dense_bytes": self.dense_bytes,
            "weights": [w.to_json() for w in self.weights],
        }


def inspect(
    path: str | Path,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    revision: str | None = None,
    progress: Progress | None = None,
) -> InspectReport:
    """Reads and checks every packed weight; of a dense checkpoint, packs each weight in memory.

    `include` and `exclude` choose weights by name as in `convert`.

    Raises:
        CheckpointError: the files break a rule.
        nf12.FormatError: a packed weight breaks a rule of the format.
    """
    checkpoint = open_checkpoint(path, revision)
    progress = progress or Progress()
    packed = checkpoint.packed_names()
    if not packed:
        return _inspect_dense(checkpoint, str(path), include, exclude, progress)
    inside = {name + suffix for name in packed for suffix in SUFFIXES}
    dense = [checkpoint.entry(name) for name in checkpoint.shard_of if name not in inside]
    report = InspectReport(str(path), False, [], len(dense), sum(e.nbytes for e in dense))
    chosen = [name for name in packed if is_chosen(name, include, exclude)]
    sizes = {name: checkpoint.entry(name + "_payload").nbytes for name in chosen}
    progress.start(sum(sizes.values()))
    for name in chosen:
        weight = checkpoint.read_packed(name)
        report.weights.append(_stats(name, weight, weight.unpack()))
        progress.advance(name, sizes[name])
    return report


def _inspect_dense(
    checkpoint: Checkpoint,
    path: str,
    include: Sequence[str],
    exclude: Sequence[str],
    progress: Progress,
) -> InspectReport:
    plan = make_plan(checkpoint, include=include, exclude=exclude)
    report = InspectReport(path, True)
    progress.start(sum(tensor.entry.nbytes for tensor in plan.tensors))
    for tensor in plan.tensors:
        name = tensor.entry.name
        weight = checkpoint.read(name) if tensor.packs else None
        packed = pack(weight) if weight is not None else None
        if weight is not None and isinstance(packed, PackedWeight):
            report.weights.append(_stats(name, packed, weight))
        else:
            report.dense_tensors += 1
            report.dense_bytes += tensor.entry.nbytes
        progress.advance(name, tensor.entry.nbytes)
    return report


def _stats(name: str, packed: PackedWeight, weight: Tensor) -> WeightStats:
    tiles = packed.tile_counts
    exponents = exponent_histogram(weight)
    coded = int(exponents[packed.base : packed.base + WINDOW].sum())
    return WeightStats(
        name,
        tuple(packed.shape),
        packed.nbytes,
        packed.base,
        int(exponents.sum()) - coded,
        tiles.clean,
        tiles.listed,
        tiles.raw,
        exponents,
    )


def exponent_histogram(weight: Tensor) -> Counts:
    """How many weights of a BF16 tensor have each of the 256 biased exponents."""
    bits = weight.reshape(-1).view(torch.int16).numpy().view(np.uint16)
    counts = np.zeros(EXPONENTS, np.int64)
    for begin in range(0, bits.size, HISTOGRAM_CHUNK):
        exponents = bits[begin : begin + HISTOGRAM_CHUNK] >> 7 & 0xFF
        counts += np.bincount(exponents, minlength=EXPONENTS)
    return counts
