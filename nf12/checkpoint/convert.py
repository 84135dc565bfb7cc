"""Converting a checkpoint: each weight packed on its own, in bounded memory, resumable."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from nf12.checkpoint.header import DTYPE_BITS, TensorEntry, data_order, render_header
from nf12.checkpoint.plan import Plan, ShardPlan, TensorPlan, make_plan, packed_entries
from nf12.checkpoint.progress import Progress
from nf12.checkpoint.source import TIES_KEY, Checkpoint, open_checkpoint
from nf12.checkpoint.staging import Part, ShardWriter, Staging, refuse_existing
from nf12.checkpoint.target import (
    check_space,
    copy_others,
    json_text,
    left_to_copy,
    refuse_changed,
    resolve_target,
    write_index,
)
from nf12.checkpoint.tensors import bytes_of, cast_to_bf16
from nf12.functional import pack
from nf12.packed_weight import PackedWeight, StaysDense
from nf12.packing import FORMAT_VERSION, MAX_QUADS

WRITE_ORDER = ("_payload", "_escapes", "_meta", "_index")


@dataclass(frozen=True)
class TensorReport:
    """What became of one tensor of the source."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source_bytes: int
    bytes: int
    reason: str  # why it stays dense; empty if packed
    base: int | None = None
    escapes: int | None = None
    worst_error: float | None = None  # largest |source - BF16| where it was cast

    @property
    def packed(self) -> bool:
        return not self.reason


@dataclass
class ConvertReport:
    """What a conversion did, or with `dry_run` what it would do at the least."""

    source: str
    target: str
    dry_run: bool
    tensors: list[TensorReport] = field(default_factory=list)
    ties: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    seconds: float = 0.0
    resumed_bytes: int = 0

    @property
    def source_bytes(self) -> int:
        return sum(tensor.source_bytes for tensor in self.tensors)

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def packed(self) -> list[TensorReport]:
        return [tensor for tensor in self.tensors if tensor.packed]

    @property
    def packed_share(self) -> float:
        """Share of the source's bytes that was packed."""
        return sum(t.source_bytes for t in self.packed) / max(self.source_bytes, 1)

    @property
    def bits_per_weight(self) -> float | None:
        """Bits a packed weight takes with its side table; None if nothing was packed."""
        weights = sum(_numel(tensor.shape) for tensor in self.packed)
        return 8 * sum(t.bytes for t in self.packed) / weights if weights else None

    @property
    def would_not_shrink(self) -> list[TensorReport]:
        return [t for t in self.tensors if t.reason.startswith("would not shrink")]

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "target": self.target,
            "dry_run": self.dry_run,
            "source_bytes": self.source_bytes,
            "bytes": self.bytes,
            "packed_share": self.packed_share,
            "bits_per_weight": self.bits_per_weight,
            "seconds": self.seconds,
            "resumed_bytes": self.resumed_bytes,
            "ties": self.ties,
            "files": self.files,
            "copied": self.copied,
            "tensors": [{**vars(t), "shape": list(t.shape)} for t in self.tensors],
        }


def convert(
    source: str | Path,
    target: str | Path,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    cast: bool = False,
    max_shard_bytes: int | None = None,
    workers: int | None = None,
    dry_run: bool = False,
    restart: bool = False,
    revision: str | None = None,
    progress: Progress | None = None,
) -> ConvertReport:
    """Packs every BF16 matrix and expert stack of a checkpoint, and copies everything else.

    Args:
        source: a folder, one safetensors file, or a hub id that is in the local cache. It is only
            read.
        target: folder to come into being, or a `.safetensors` file where the source is one file.
        include: patterns (fnmatch) of the tensors to pack; all if empty.
        exclude: patterns of tensors that stay dense.
        cast: round FP16 and FP32 weights to BF16 first. This is the only step that loses anything;
            the report holds the worst error of each such tensor.
        max_shard_bytes: size that no file exceeds, unless a single tensor does. The target has the
            files of the source if None.
        workers: threads that share the work on each tensor; torch's setting if None.
        dry_run: plan and report, write nothing.
        restart: drop what an interrupted run left instead of resuming it.
        revision: branch, tag or commit of a hub id.
        progress: told what is done, in bytes of the source.

    Returns:
        What became of each tensor.

    Raises:
        CheckpointError: the source breaks a rule, or the target exists.
        OSError: reading or writing failed; what is done is kept, and a rerun resumes.
    """
    begin = time.monotonic()
    checkpoint = open_checkpoint(source, revision)
    plan = make_plan(
        checkpoint, include=include, exclude=exclude, cast=cast, max_shard_bytes=max_shard_bytes
    )
    path, single_file = resolve_target(checkpoint, target, len(plan.shards))
    report = ConvertReport(
        source=str(source),
        target=str(target),
        dry_run=dry_run,
        ties=plan.ties,
        files=[shard.file_name for shard in plan.shards],
        copied=[other.name for other in checkpoint.others],
    )
    if dry_run:
        refuse_existing(path)
        report.tensors += [_planned(tensor) for tensor in plan.tensors]
        return report
    job: dict[str, Any] = {
        "operation": "convert",
        "source": checkpoint.fingerprint(),
        "include": list(include),
        "exclude": list(exclude),
        "cast": cast,
        "max_shard_bytes": max_shard_bytes,
        "single_file": single_file,
    }
    with _threads(workers), Staging(path, job, restart=restart) as staging:
        run = _Run(checkpoint, plan, staging, progress or Progress())
        if not staging.already_published:
            left = left_to_copy(staging, checkpoint)
            check_space(path, plan.least_bytes - run.resumed_bytes + left)
            run.progress.start(plan.source_bytes + left, run.resumed_bytes)
            run.write_shards()
            write_index(staging, checkpoint, [s.file_name for s in plan.shards], plan.stem)
            copy_others(staging, checkpoint, run.config_text(), run.progress)
            refuse_changed(checkpoint, job["source"])
        staging.publish()
    report.tensors += run.reports()
    report.resumed_bytes = run.resumed_bytes
    report.seconds = time.monotonic() - begin
    return report


class _Run:
    """One conversion under way. `notes` holds the journal's note of each tensor that is done."""

    def __init__(
        self, source: Checkpoint, plan: Plan, staging: Staging, progress: Progress
    ) -> None:
        self.source = source
        self.plan = plan
        self.staging = staging
        self.progress = progress
        self.reasons = {tensor.entry.name: tensor.reason for tensor in plan.tensors}
        self.notes: dict[str, dict[str, Any]] = {}
        for shard in plan.shards:
            for record in staging.records(shard.file_name):
                self.notes[record["tensor"]] = record["note"]
        self.resumed_bytes = sum(t.entry.nbytes for t in plan.tensors if self._is_done(t.entry))

    def write_shards(self) -> None:
        for shard in self.plan.shards:
            if not self.staging.is_done(shard.file_name):
                self._write_shard(shard)

    def reports(self) -> list[TensorReport]:
        return [_report(t.entry, self.notes[t.entry.name]) for t in self.plan.tensors]

    def config_text(self) -> bytes | None:
        """config.json with the entry that tells loaders how to read the target."""
        if self.source.config is None or not any("base" in note for note in self.notes.values()):
            return None
        config = dict(self.source.config)
        cast = any("worst_error" in note for note in self.notes.values())
        for key in ("dtype", "torch_dtype"):
            if cast and config.get(key) in ("float16", "float32"):
                config[key] = "bfloat16"
        config["quantization_config"] = {
            "quant_method": "nf12",
            "bits": 12,
            "version": FORMAT_VERSION,
        }
        return json_text(config)

    def _write_shard(self, shard: ShardPlan) -> None:
        metadata = self._metadata(shard)
        header_bytes = _header_bound(shard, metadata)
        with ShardWriter(self.staging, shard.file_name, header_bytes) as writer:
            # 8-byte elements first: what a packed weight takes is a multiple of 4 bytes only.
            for tensor in shard.dense:
                if DTYPE_BITS[tensor.entry.dtype] == 64:
                    self._copy(writer, tensor.entry)
            for tensor in shard.packed:
                self._pack(writer, tensor)
            for entry in self._dense_entries(shard):
                self._copy(writer, entry)
            writer.finish(metadata)

    def _pack(self, writer: ShardWriter, tensor: TensorPlan) -> None:
        entry = tensor.entry
        if entry.name in self.notes:
            return
        weight = self.source.read(entry.name)
        note: dict[str, Any] = {}
        if tensor.casts:
            weight, note["worst_error"] = cast_to_bf16(weight)
        try:
            packed = pack(weight)
        except ValueError as error:  # more escapes than the side table can hold
            packed = StaysDense(str(error), 0, entry.nbytes)
        if isinstance(packed, PackedWeight):
            note |= {"base": packed.base, "escapes": packed.num_escapes, "bytes": packed.nbytes}
            writer.append(entry.name, _parts(entry.name, packed), note)
            self.progress.advance(entry.name, entry.nbytes)
        else:
            # Written after all packed weights: its odd length would misalign what follows.
            note = {"reason": f"would not shrink: {packed.reason}", "deferred": True}
            writer.append(entry.name, [], note)
        self.notes[entry.name] = note

    def _copy(self, writer: ShardWriter, entry: TensorEntry) -> None:
        if self._is_done(entry):
            return
        part = Part(entry.name, entry.dtype, entry.shape, self.source.chunks(entry.name))
        turned_out = self.notes.get(entry.name)
        reason = turned_out["reason"] if turned_out else self.reasons[entry.name]
        self.notes[entry.name] = {"reason": reason}
        writer.append(entry.name, [part], self.notes[entry.name])
        self.progress.advance(entry.name, entry.nbytes)

    def _is_done(self, entry: TensorEntry) -> bool:
        note = self.notes.get(entry.name)
        return note is not None and not note.get("deferred")

    def _dense_entries(self, shard: ShardPlan) -> list[TensorEntry]:
        """What stays dense, those included that turned out not to shrink, in the order to write."""
        planned = [tensor.entry for tensor in shard.dense]
        turned_out = [t.entry for t in shard.packed if "reason" in self.notes[t.entry.name]]
        return sorted(planned + turned_out, key=data_order)

    def _metadata(self, shard: ShardPlan) -> dict[str, str]:
        """The source's metadata, and which copies were left out."""
        merged: dict[str, str] = {}
        same = self.source.shards.get(shard.file_name)
        for source_shard in [same] if same else self.source.shards.values():
            merged = {**source_shard.header.metadata, **merged}
        names = {tensor.entry.name for tensor in (*shard.packed, *shard.dense)}
        ties = {copy: kept for copy, kept in self.plan.ties.items() if kept in names}
        return {**merged, TIES_KEY: json.dumps(ties)} if ties else merged


def _parts(name: str, packed: PackedWeight) -> list[Part]:
    """The four tensors, those of 16-byte multiples first, so that payloads stay well aligned."""
    tensors = packed.tensors(name)
    return [
        Part(
            tensor_name,
            "U8" if tensor.dtype == torch.uint8 else "I32",
            tuple(tensor.shape),
            [bytes_of(tensor)],
        )
        for tensor_name, tensor in ((name + s, tensors[name + s]) for s in WRITE_ORDER)
    ]


def _header_bound(shard: ShardPlan, metadata: Mapping[str, str]) -> int:
    """Bytes that the header takes at most, whichever weights turn out not to shrink."""
    most = 10**15 - 1  # as many digits as a file's size ever has
    entries = [tensor.entry for tensor in (*shard.packed, *shard.dense)]
    for tensor in shard.packed:
        entries += packed_entries(tensor.entry, MAX_QUADS)
    entries = [replace(entry, begin=most, end=most) for entry in entries]
    # The data begin on a cache line, where mapped files keep it.
    return -(-len(render_header(entries, metadata)) // 64) * 64


def _planned(tensor: TensorPlan) -> TensorReport:
    entry = tensor.entry
    return TensorReport(
        entry.name, entry.dtype, entry.shape, entry.nbytes, tensor.least_bytes, tensor.reason
    )


def _report(entry: TensorEntry, note: Mapping[str, Any]) -> TensorReport:
    return TensorReport(
        entry.name,
        entry.dtype,
        entry.shape,
        entry.nbytes,
        note.get("bytes", entry.nbytes),
        note.get("reason", ""),
        note.get("base"),
        note.get("escapes"),
        note.get("worst_error"),
    )


@contextmanager
def _threads(workers: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(workers or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _numel(shape: tuple[int, ...]) -> int:
    return math.prod(shape)
