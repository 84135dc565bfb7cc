"""The operators' RuntimeError as the type that Python callers expect: the stable ABI of libnf12.so
leaves nothing but a text."""

from __future__ import annotations

import re

import torch

# "nf12::gemm: hipModuleLaunchKernel: unspecified launch failure"
_DRIVER_FAILURE = re.compile(r"nf12::\w+: (hip|cu)[A-Z]\w*: ")
_OUT_OF_MEMORY = re.compile(r"cannot allocate|allocate memory|: out of memory$")


def translated(error: RuntimeError) -> Exception:
    """OutOfMemoryError, IndexError of gather, ValueError of a rule on the arguments; `error` itself
    for what is nobody's argument, such as a GPU's fault."""
    text = str(error)
    if _OUT_OF_MEMORY.search(text):
        return torch.OutOfMemoryError(text)
    if text.startswith("nf12::gather: ids holds"):
        return IndexError(text)
    if text.startswith("nf12::") and not _DRIVER_FAILURE.match(text):
        return ValueError(text)
    return error
