"""`convert_model`: packs the weights of any nn.Module in place."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nf12.functional import pack
from nf12.packed_weight import CastReport, PackedWeight, StaysDense
from nf12.placement import Parents, Use, parents_of, place, reason_to_stay_dense


@dataclass(frozen=True)
class PackedEntry:
    """A weight that was packed. `aliases` are the other names that share it."""

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    base: int
    dense_bytes: int  # as it was, in its own dtype
    packed_bytes: int
    cast: CastReport | None = None


@dataclass(frozen=True)
class DenseEntry:
    """A parameter that was left as it is, and why."""

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    dense_bytes: int
    reason: str


@dataclass
class ConversionReport:
    """What `convert_model` did. print() it, or take `to_json()`."""

    packed: list[PackedEntry] = field(default_factory=list)
    dense: list[DenseEntry] = field(default_factory=list)

    @property
    def bytes_before(self) -> int:
        """Bytes of all parameters before; shared ones count once."""
        dense = sum(entry.dense_bytes for entry in self.dense)
        return sum(entry.dense_bytes for entry in self.packed) + dense

    @property
    def bytes_after(self) -> int:
        packed = sum(entry.packed_bytes for entry in self.packed)
        return packed + sum(entry.dense_bytes for entry in self.dense)

    @property
    def coverage(self) -> float:
        """Share of the bytes before that was packed, 0..1."""
        packed = sum(entry.dense_bytes for entry in self.packed)
        return packed / self.bytes_before if self.bytes_before else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report in JSON types."""
        report = dataclasses.asdict(self)
        for entry in report["packed"]:
            if entry["cast"]:
                entry["cast"]["source_dtype"] = str(entry["cast"]["source_dtype"])
        totals = ("bytes_before", "bytes_after", "coverage")
        return {name: getattr(self, name) for name in totals} | report

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        lines = [
            f"packed {len(self.packed)} of {len(self.packed) + len(self.dense)} weights, "
            f"{self.coverage:.1%} of the bytes: {self.bytes_before:,} -> {self.bytes_after:,}"
        ]
        for entry in self.packed:
            if entry.cast:
                lines.append(
                    f"  cast  {entry.name} {list(entry.shape)} from {entry.cast.source_dtype}: "
                    f"worst error {entry.cast.max_abs_error:.3g}"
                )
        reasons = [f"  dense {e.name} {list(e.shape)}: {e.reason}" for e in self.dense]
        return "\n".join(lines + reasons)


def convert_model(
    model: nn.Module,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    *,
    cast: bool = False,
) -> ConversionReport:
    """Packs every BF16 weight of `model` with 2 or 3 dimensions that shrinks, in place.

    nn.Linear and nn.Embedding become nf12.Linear and nf12.Embedding; weights of other modules,
    subclasses of these two included, are packed where they are (nf12.packed_parameter). A weight
    that several modules share is packed once and stays shared. Each dense weight is released as
    soon as it is packed. Packed weights are frozen.

    include, exclude: glob or globs on the name of a parameter ("*.mlp.*") or of its module
    ("lm_head"). cast: also FP16 and FP32 weights, rounded to BF16; the report has the worst error.

    Returns a report of every parameter, with the reason for each that stays dense.
    """
    wanted, refused = _globs(include), _globs(exclude)
    parents = parents_of(model)
    report = ConversionReport()
    groups = _uses_by_weight(model)
    while groups:
        uses = groups.pop(0)  # the list must not keep a packed weight's dense form alive
        _convert(uses, parents, wanted, refused, cast, report)
    return report


def _globs(patterns: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if patterns is None or isinstance(patterns, str):
        return None if patterns is None else (patterns,)
    return tuple(patterns)


def _uses_by_weight(model: nn.Module) -> list[list[Use]]:
    """Every parameter's uses, shared ones together, in the order of the model."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    groups: dict[Any, list[Use]] = {}
    for module in paths:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                use = Use(module, name, tuple(paths[module]))
                groups.setdefault(_identity(parameter), []).append(use)
    return list(groups.values())


def _identity(parameter: Tensor) -> Any:
    """Equal for parameters that are the same memory seen the same way."""
    if type(parameter.data) is not Tensor or parameter.device.type == "meta":
        return id(parameter)
    pointer = parameter.data_ptr()
    if pointer == 0:
        return id(parameter)
    return parameter.device, pointer, parameter.shape, parameter.stride(), parameter.dtype


def _convert(
    uses: list[Use],
    parents: Parents,
    include: tuple[str, ...] | None,
    exclude: tuple[str, ...] | None,
    cast: bool,
    report: ConversionReport,
) -> None:
    first, *others = uses
    weight = first.module._parameters[first.parameter]
    assert weight is not None
    name, *more = (name for use in uses for name in use.names)
    aliases = tuple(more)
    shape, dense_bytes = tuple(weight.shape), weight.nbytes
    reason = _reason_for_dense(uses, weight, parents, include, exclude, cast)
    if reason is None:
        packed = pack(weight, cast=cast)
        if isinstance(packed, PackedWeight):
            del weight
            owner = place(first, packed, parents, cast=cast)
            for use in others:
                place(use, packed, parents, owner=(owner, first.parameter), cast=cast)
            sizes = (packed.base, dense_bytes, packed.nbytes)
            report.packed.append(PackedEntry(name, aliases, shape, *sizes, packed.cast))
            return
        assert isinstance(packed, StaysDense)
        reason = packed.reason
    report.dense.append(DenseEntry(name, aliases, shape, dense_bytes, reason))


# ---- what stays dense ---------------------------------------------------------------------------


def _reason_for_dense(
    uses: list[Use],
    weight: Tensor,
    parents: Parents,
    include: tuple[str, ...] | None,
    exclude: tuple[str, ...] | None,
    cast: bool,
) -> str | None:
    names = [name for use in uses for name in (*use.names, *use.paths)]
    if include is not None and not _matches(names, include):
        return "not included"
    if exclude is not None and _matches(names, exclude):
        return "excluded"
    if weight.dim() not in (2, 3) or weight.numel() == 0:
        return f"{weight.dim()}-D, NF12 packs 2-D and 3-D weights" if weight.numel() else "empty"
    if type(weight.data) is not Tensor:
        return f"is a {type(weight.data).__name__}"
    if weight.device.type == "meta":
        return "on the meta device, without values"
    castable = cast and weight.dtype in (torch.float16, torch.float32)
    if weight.dtype != torch.bfloat16 and not castable:
        return f"dtype is {weight.dtype}"
    reasons = (reason_to_stay_dense(use, parents, cast=cast) for use in uses)
    return next((reason for reason in reasons if reason), None)


def _matches(names: list[str], globs: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for name in names for glob in globs)
