"""Packed weights on their way from checkpoint files into a transformers model.

transformers renames the checkpoint's keys and merges or splits some tensors (experts) by tables
that know dense names only. A packed weight therefore passes them under its plain name:

    T_payload, T_index, T_escapes, T_meta  --PlainNames-->  T  --the model's renamings-->  T'

    T' belongs to a converter of the model:  MergePacked unpacks, the converter merges, Pack packs
    any other T':                            LoadPacked checks and places it as it is
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.core_model_loading import (
    ConversionOps,
    WeightConverter,
    WeightRenaming,
    WeightTransform,
)

from nf12.checkpoint.errors import CheckpointError
from nf12.checkpoint.header import read_header
from nf12.functional import pack
from nf12.integrations.transformers.placing import Places
from nf12.packed_weight import SUFFIXES, PackedWeight, StaysDense


class PackedNames(dict[str, str]):
    """Name of the packed weight by checkpoint key, for each of its four tensors."""

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedNames:
        # transformers copies a converter once per key.
        return self


def packed_names(files: Iterable[str]) -> PackedNames:
    """The packed weights in the safetensors `files`.

    Two or more of a name's four suffixes make it a packed weight; one alone is a plain tensor that
    happens to be called so.

    Raises:
        nf12.checkpoint.CheckpointError: a damaged file, an incomplete packed weight, or a weight
            that is there both packed and dense.
    """
    keys = {key for file in files for key in read_header(Path(file)).tensors}
    found: dict[str, set[str]] = {}
    for key in keys:
        suffix = next((s for s in SUFFIXES if key.endswith(s)), None)
        if suffix is not None:
            found.setdefault(key.removesuffix(suffix), set()).add(suffix)
    names = PackedNames()
    for name, suffixes in found.items():
        if len(suffixes) == 1:
            continue
        lacking = [name + suffix for suffix in SUFFIXES if suffix not in suffixes]
        if lacking:
            raise CheckpointError(f"packed weight {name!r} lacks {', '.join(lacking)}")
        if name in keys:
            raise CheckpointError(f"{name!r} is there both packed and dense")
        names.update({name + suffix: name for suffix in SUFFIXES})
    return names


def loading_transforms(
    transforms: list[WeightTransform], names: PackedNames, places: Places
) -> list[WeightTransform]:
    """The model's transforms, extended so that they take packed weights."""
    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    plain: dict[str, str] = {}  # by name after the model's renamings
    for name in sorted(set(names.values())):
        renamed = name
        for renaming in renamings:
            renamed, _ = renaming.rename_source_key(renamed)
        plain[renamed] = name
    extended: list[WeightTransform] = [PlainNames(names)]
    for transform in transforms:
        if isinstance(transform, WeightConverter) and any(
            transform.rename_source_key(name)[1] is not None for name in plain
        ):
            transform = MergePacked.of(transform, names, places)
        extended.append(transform)
    return [*extended, LoadPacked(names, places, frozenset(plain))]


def saving_transforms(
    transforms: list[WeightTransform], packed: Iterable[str]
) -> list[WeightTransform]:
    """Those of the `transforms` used in loading that saving may revert: a converter would split a
    merged weight, which it cannot when the weight is `packed`. It is saved, and loads, merged."""
    return [
        transform
        for transform in transforms
        if not isinstance(transform, WeightConverter)
        or not (isinstance(transform, MergePacked) or _makes_any(transform, packed))
    ]


def _makes_any(converter: WeightConverter, names: Iterable[str]) -> bool:
    reverse = WeightRenaming(
        list(converter._original_target_patterns), list(converter._original_source_patterns)
    )
    reverse.scope_prefix = converter.scope_prefix
    reverse.base_model_prefix = converter.base_model_prefix
    return any(reverse.rename_source_key(name)[1] is not None for name in names)


class PlainNames(WeightRenaming):
    """First renaming of all: the key of any of the four tensors becomes the weight's name."""

    def __init__(self, names: PackedNames) -> None:
        super().__init__("nf12", "nf12")  # patterns that are never used
        self.names = names

    def rename_source_key(self, source_key: str) -> tuple[str, str | None]:
        return self.names.get(source_key, source_key), None


class PackedCollector(WeightConverter):
    """A converter that remembers the key of each tensor it is given."""

    names: PackedNames

    def add_tensor(
        self, target_key: str, source_key: str, source_pattern: str, future: Any
    ) -> None:
        super().add_tensor(target_key, source_key, source_pattern, future)
        self.__dict__.setdefault("keys", {}).setdefault(source_pattern, []).append(source_key)

    def weights(self) -> dict[str, list[Tensor | PackedWeight]]:
        """What was collected, by source pattern, in the order of the keys.

        Raises nf12.FormatError for a packed weight that breaks a rule of the format.
        """
        collected: dict[str, list[Tensor]] = super().materialize_tensors()
        return {
            pattern: list(self._weights(zip(self.__dict__["keys"][pattern], tensors, strict=True)))
            for pattern, tensors in collected.items()
        }

    def _weights(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[Tensor | PackedWeight]:
        parts: dict[str, Tensor] = {}
        for key, tensor in tensors:
            if key not in self.names:
                yield tensor
                continue
            # Keys come sorted, so the four tensors of a weight follow each other.
            parts[key] = tensor
            if len(parts) == len(SUFFIXES):
                yield PackedWeight.from_tensors(parts, self.names[key])
                parts = {}


class MergePacked(PackedCollector):
    """A converter of the model that may be given packed weights; what it makes is packed again."""

    @classmethod
    def of(cls, converter: WeightConverter, names: PackedNames, places: Places) -> MergePacked:
        copy = cls(
            list(converter._original_source_patterns),
            list(converter._original_target_patterns),
            converter.operations,
        )
        for slot in ("scope_prefix", "base_model_prefix", "force_cpu"):
            if hasattr(converter, slot):
                setattr(copy, slot, getattr(converter, slot))
        copy.quantization_operation = Pack(places)
        copy.names = names
        return copy

    def materialize_tensors(self) -> dict[str, list[Tensor]]:
        return {
            pattern: [w.unpack() if isinstance(w, PackedWeight) else w for w in weights]
            for pattern, weights in self.weights().items()
        }


class LoadPacked(PackedCollector):
    """Last converter of all: places packed weights that the model takes as they are."""

    def __init__(self, names: PackedNames, places: Places, renamed: frozenset[str]) -> None:
        super().__init__("nf12", "nf12", [Pack(places)])  # neither is ever used
        self.names = names
        self.places = places
        self.renamed = renamed

    def rename_source_key(self, source_key: str) -> tuple[str, str | None]:
        return source_key, self.source_patterns[0] if source_key in self.renamed else None

    def convert(
        self,
        layer_name: str,
        model: Any = None,
        config: Any = None,
        hf_quantizer: Any = None,
        loading_info: Any = None,
    ) -> dict[str, Tensor]:
        weights = [weight for found in self.weights().values() for weight in found]
        if len(weights) != 1 or not isinstance(weights[0], PackedWeight):
            raise CheckpointError(
                f"{layer_name}: {len(weights)} weights of the checkpoint go by this name"
            )
        packed = weights[0]
        hf_quantizer.loading_info = loading_info
        if not self.places.can_hold(layer_name):
            return {layer_name: packed.unpack()}
        parameter = self.places.parameter(layer_name)
        assert parameter is not None
        if packed.shape == parameter.shape:
            self.places.place(layer_name, packed, loading_info.missing_keys)
        else:
            loading_info.missing_keys.discard(layer_name)
            loading_info.mismatched_keys.add((layer_name, packed.shape, parameter.shape))
        return {}


class Pack(ConversionOps):
    """Packs and places dense weights: while loading a dense checkpoint, and after a merge."""

    def __init__(self, places: Places) -> None:
        self.places = places

    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        target_patterns: list[str],
        **context: Any,
    ) -> dict[str, list[Tensor]]:
        dense: dict[str, list[Tensor]] = {}
        for name, value in input_dict.items():
            weight = value[0] if isinstance(value, list) else value
            if (packed := self._pack(name, weight)) is not None:
                self.places.place(name, packed, context["missing_keys"])
            else:
                parameter = self.places.parameter(name)
                dense[name] = [weight if parameter is None else weight.to(parameter.dtype)]
        return dense

    def _pack(self, name: str, weight: Tensor) -> PackedWeight | None:
        parameter = self.places.parameter(name)
        if parameter is None or parameter.shape != weight.shape or not self.places.can_hold(name):
            return None
        if parameter.dtype != torch.bfloat16:
            return None
        # A wider source is rounded here: the quantizer has seen that BF16 was asked for.
        packed = pack(weight.to(torch.bfloat16))
        return None if isinstance(packed, StaysDense) else packed
