"""Times of calls that take turns in one process, cold and warm, on any device.

Cold: what the last-level cache held is pushed out first, and each copy of the weight is used once,
so that weights come from memory as they do in a model. Warm: the same copy again and again.

On a GPU the calls over all copies are one graph between two events: neither the host's time nor the
events' own blurs a call of a few microseconds. Calls that cannot be captured run one by one, and a
Timing says so.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nf12.llc import llc_bytes

MIN_TURNS, MAX_TURNS, SECONDS = 5, 50, 0.3  # of each measurement
GPU_COPIES = 4
_CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_MIB = 1 << 20
_UNKNOWN_CACHE_BYTES = 32 * _MIB
_MOST_FLUSH_BYTES = {"cpu": 256 * _MIB, "cuda": 1024 * _MIB}

Call = Callable[[int], Tensor]  # one multiplication by copy i of the weight


@dataclass(frozen=True)
class Timing:
    """Medians, in microseconds a call, and the result of the last cold call."""

    cold_us: float
    warm_us: float
    result: Tensor
    is_graph: bool  # else one call after the other, the host's time included


def copies_for(device: torch.device) -> int:
    """How many copies of a weight `alternate` wants."""
    return GPU_COPIES if device.type == "cuda" else 1


def alternate(calls: Sequence[Call], device: torch.device, *, capturable: bool) -> list[Timing]:
    """Times each of `calls`, which take turns.

    capturable: whether all of them may run while a GPU graph is captured.
    """
    flush = CacheFlush(device)
    with torch.inference_mode():
        for call in calls:
            call(0)  # first calls load and allocate
        cold, warm = _prepare(calls, device, capturable and device.type == "cuda")
        cold_us = _turns(cold, flush)
        results = [runs.result.clone() for runs in cold]
        warm_us = _turns(warm, None)
    are_graphs = [runs.graph is not None for runs in cold]
    return [Timing(*fields) for fields in zip(cold_us, warm_us, results, are_graphs, strict=True)]


def _prepare(
    calls: Sequence[Call], device: torch.device, capture: bool
) -> tuple[list[_Runs], list[_Runs]]:
    """For each call its runs over all copies, and over the first one as often."""
    copies = copies_for(device)
    try:
        cold = [_Runs(call, list(range(copies)), device, capture) for call in calls]
        warm = [_Runs(call, [0] * copies, device, capture) for call in calls]
    except RuntimeError as error:
        if not capture:
            raise
        warnings.warn(f"nf12: timed call by call, since capture failed: {error}", stacklevel=2)
        return _prepare(calls, device, capture=False)
    return cold, warm


def _turns(contenders: Sequence[_Runs], flush: CacheFlush | None) -> list[float]:
    times: list[list[float]] = [[] for _ in contenders]
    for runs in contenders:
        runs.time_us(flush)
    end = time.perf_counter() + SECONDS
    while len(times[0]) < MIN_TURNS or (time.perf_counter() < end and len(times[0]) < MAX_TURNS):
        for spent, runs in zip(times, contenders, strict=True):
            spent.append(runs.time_us(flush))
    return [statistics.median(spent) for spent in times]


class _Runs:
    """One call after the other over the given copies."""

    def __init__(
        self, call: Call, copies: Sequence[int], device: torch.device, capture: bool
    ) -> None:
        self.call, self.copies, self.device = call, copies, device
        self.result: Tensor
        self.graph = None
        if capture:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.device(device), torch.cuda.graph(self.graph):
                self._run_all()

    def time_us(self, flush: CacheFlush | None) -> float:
        """Microseconds a call."""
        run = self._run_all if self.graph is None else self.graph.replay
        if self.device.type != "cuda":
            if flush is not None:
                flush()
            start = time.perf_counter()
            run()
            return (time.perf_counter() - start) * 1e6 / len(self.copies)
        with torch.cuda.device(self.device):
            begin, end = _event(), _event()
            if flush is not None:
                flush()  # the host is far ahead when this ends
            begin.record()
            run()
            end.record()
            end.synchronize()
            elapsed_ms: float = begin.elapsed_time(end)
            return elapsed_ms * 1e3 / len(self.copies)

    def _run_all(self) -> None:
        for copy in self.copies:
            self.result = self.call(copy)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class CacheFlush:
    """Reads and writes more than the last-level cache of `device` holds."""

    def __init__(self, device: torch.device) -> None:
        words = flush_bytes(device) // 4
        self._memory = torch.zeros(words, dtype=torch.float32, device=device)

    def __call__(self) -> None:
        self._memory.add_(1.0)


def flush_bytes(device: torch.device) -> int:
    """Twice the last-level cache, as far as memory allows."""
    return min(2 * cache_bytes(device), _MOST_FLUSH_BYTES[device.type])


def cache_bytes(device: torch.device) -> int:
    """Bytes of the last-level cache; 32 MiB where nothing tells."""
    known = llc_bytes(device)
    if known is not None:
        return known
    if device.type == "cuda":
        l2_bytes: int = torch.cuda.get_device_properties(device).L2_cache_size
        return l2_bytes or _UNKNOWN_CACHE_BYTES
    return cpu_cache_bytes() or _UNKNOWN_CACHE_BYTES


def cpu_cache_bytes() -> int | None:
    """The largest cache that Linux lists for the first core, None where it lists none."""
    texts = [path.read_text().strip() for path in _CPU_CACHES.glob("index*/size")]
    units = {"K": 1 << 10, "M": 1 << 20}
    return max((int(text[:-1]) * units[text[-1]] for text in texts), default=None)
