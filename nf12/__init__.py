"""nf12: BF16 weights in 12 bits, without loss."""

from __future__ import annotations

__version__ = "0.1.0"

import importlib as _importlib
from typing import Any as _Any

import torch as _torch

from nf12 import integrations as _integrations
from nf12.backend import Backend, BackendUnavailable, info, library_missing, resolve_backend
from nf12.convert import ConversionReport, convert_model
from nf12.embedding import Embedding
from nf12.functional import (
    Selection,
    check_bits,
    gather,
    gemm,
    kernels,
    pack,
    select,
    unpack,
    use_kernel,
)
from nf12.linear import Linear
from nf12.llc import llc_bytes
from nf12.packed_weight import CastReport, PackedWeight, StaysDense
from nf12.packing import FormatError

__all__ = [
    "Backend",
    "BackendUnavailable",
    "CastReport",
    "ConversionReport",
    "Embedding",
    "FormatError",
    "Linear",
    "PackedWeight",
    "Selection",
    "StaysDense",
    "check_bits",
    "convert_model",
    "gather",
    "gemm",
    "info",
    "kernels",
    "llc_bytes",
    "pack",
    "resolve_backend",
    "select",
    "unpack",
    "use_kernel",
]


def __getattr__(name: str) -> _Any:
    """`nf12.checkpoint`, imported when it is first asked for: it brings safetensors along."""
    if name == "checkpoint":
        return _importlib.import_module("nf12.checkpoint")
    raise AttributeError(f"module 'nf12' has no attribute '{name}'")


library_missing()  # loads libnf12.so, so that torch.ops.nf12 exists; a failure is info()'s to tell
_torch.serialization.add_safe_globals([PackedWeight])
_integrations.register_all()
