"""Weights that reach every kind of tile, and their packed form on a target's device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

SEED = 12


def weights() -> Iterator[tuple[str, Tensor]]:
    """Clean, listed and raw tiles, tails in both dimensions, experts, every bit pattern."""
    generator = torch.Generator().manual_seed(SEED)
    patterns = torch.arange(1 << 16).to(torch.int16)

    def ordinary(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=generator) * 0.02).bfloat16()

    yield "all patterns", patterns.view(torch.bfloat16).reshape(256, 256)
    for shape in ((64, 256), (37, 300), (1, 1), (100, 500)):
        yield f"ordinary {list(shape)}", ordinary(*shape)
    outliers = ordinary(96, 640)
    outliers.view(-1)[::997] *= 2.0**20
    outliers[:16] = 0
    yield "outliers and zeros [96, 640]", outliers
    mixed = ordinary(2, 70, 1000)
    places = torch.randperm(mixed.numel(), generator=generator)[: 1 << 16]
    mixed.view(torch.int16).view(-1)[places] = patterns
    yield "experts with all patterns [2, 70, 1000]", mixed
