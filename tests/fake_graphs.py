"""CUDA graphs without a GPU: what nf12.timing has torch.cuda do, and a clock of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from nf12 import timing


class FakeGraphs:
    """torch.cuda as far as timing.py goes: what happens in which order, and how long it takes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.clock_ms = 0.0
        cuda = torch.cuda
        patch.setattr(cuda, "device", lambda device: contextlib.nullcontext())
        patch.setattr(cuda, "CUDAGraph", lambda: Graph(self))
        patch.setattr(cuda, "graph", lambda graph: graph.capture())
        patch.setattr(cuda, "Event", lambda enable_timing: Event(self))
        patch.setattr(timing, "CacheFlush", lambda device: lambda: self.log.append("flush"))


class Graph:
    def __init__(self, fake: FakeGraphs) -> None:
        self.fake = fake

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        before = len(self.fake.log)
        yield
        self.captured = self.fake.log[before:]
        del self.fake.log[before:]

    def replay(self) -> None:
        self.fake.log += self.captured
        self.fake.clock_ms += 0.001 * sum(float(call[1:].split("@")[0]) for call in self.captured)


class Event:
    def __init__(self, fake: FakeGraphs) -> None:
        self.fake = fake

    def record(self) -> None:
        self.at = self.fake.clock_ms

    def synchronize(self) -> None:
        self.fake.log.append("wait")

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at
