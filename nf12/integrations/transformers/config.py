"""The `quantization_config` entry of config.json."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from transformers.utils.quantization_config import QuantizationConfigMixin

from nf12.functional import check_bits
from nf12.packing import FORMAT_VERSION

QUANT_METHOD = "nf12"


class Nf12Config(QuantizationConfigMixin):
    """Lossless 12-bit storage of BF16 weights.

    Args:
        bits: 12; anything else is refused with the reason.
        version: of the storage format.
        include: globs on the parameter's qualified name; only these are packed while loading.
            Without, every 2-D and 3-D parameter that shrinks is.
        exclude: globs of what stays dense.

    Raises:
        ValueError: bits or version that this package does not read.
    """

    def __init__(
        self,
        bits: int = 12,
        version: int = FORMAT_VERSION,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
        **other: Any,
    ) -> None:
        check_bits(bits)
        if version != FORMAT_VERSION:
            raise ValueError(
                f"nf12: the checkpoint has format version {version}, this package reads"
                f" {FORMAT_VERSION}: a newer nf12 is needed"
            )
        # transformers types it as an enum of its own methods, and takes strings from others.
        self.quant_method = QUANT_METHOD  # type: ignore[assignment]
        self.bits = bits
        self.version = version
        self.include = list(include) if include is not None else None
        self.exclude = list(exclude) if exclude is not None else None
        # What a converter noted beside: kept, so that saving loses nothing.
        self.other = {key: value for key, value in other.items() if key != "quant_method"}

    def covers(self, name: str) -> bool:
        """Whether the parameter `name` is to be packed, by the globs alone."""
        if self.exclude is not None and any(fnmatchcase(name, glob) for glob in self.exclude):
            return False
        return self.include is None or any(fnmatchcase(name, glob) for glob in self.include)

    def to_dict(self) -> dict[str, Any]:
        fields = {"quant_method": QUANT_METHOD, "bits": self.bits, "version": self.version}
        globs = {"include": self.include, "exclude": self.exclude}
        return {**self.other, **fields, **{k: v for k, v in globs.items() if v is not None}}
