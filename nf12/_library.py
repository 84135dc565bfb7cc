"""Loads libnf12.so, which registers `torch.ops.nf12.*`, and the introspection module `_C`."""

import re
from pathlib import Path

import torch

MIN_TORCH = (2, 11)
LIBRARY = Path(__file__).resolve().parent / "lib" / "libnf12.so"


def _torch_version() -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return (int(match[1]), int(match[2])) if match else MIN_TORCH


def _load() -> None:
    if _torch_version() < MIN_TORCH:
        raise ImportError(
            f"nf12 needs torch >= {MIN_TORCH[0]}.{MIN_TORCH[1]}, this is torch {torch.__version__}"
        )
    if not LIBRARY.is_file():
        raise ImportError(
            f"nf12: {LIBRARY} is missing; build it with `pip install --no-build-isolation .` "
            "in the source folder"
        )
    try:
        torch.ops.load_library(str(LIBRARY))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ImportError(f"nf12: {LIBRARY} does not load: {error}") from error


_load()

from nf12 import _C as introspection  # noqa: E402  (finds libnf12.so already in the process)

__all__ = ["LIBRARY", "MIN_TORCH", "introspection"]
