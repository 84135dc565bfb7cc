"""Times of calls that take turns in one process, cold and warm, on any device.

Cold: what the last-level cache held is pushed out first, and each copy of the weight is used once,
so that weights come from memory as they do in a model. Warm: the same copy again and again.

`rotate` does without pushing anything out: it takes turns over so many copies that together they
exceed the cache twice. It is what benchmarks use, `alternate` what has memory for few copies only.

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


@dataclass(frozen=True)
class Rotation:
    """Median microseconds a call, and the result of the last timed call."""

    us: float
    result: Tensor
    is_graph: bool


def rotate(
    calls: Sequence[Call],
    copies: int,
    device: torch.device,
    *,
    calls_per_turn: int,
    turns: int,
    seconds: float = 0.0,
    capturable: bool,
) -> list[Rotation]:
    """Times each of `calls`, which take turns: at least `turns` of them, for at least `seconds`.

    A turn is `calls_per_turn` calls one after the other, the next on the next copy. On a GPU it is
    one replay of a graph, and all turns are enqueued before the first one is waited for.
    """
    with torch.inference_mode():
        for call in calls:
            call(0)
        if device.type != "cuda":
            return _rotate_on_host(calls, copies, calls_per_turn, turns, seconds)
        order = [i % copies for i in range(calls_per_turn)]
        contenders, is_graph = _prepare_rotation(calls, order, device, capturable)
        spans: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in contenders]
        with torch.cuda.device(device):
            for runs in contenders:
                runs.run()
            end_s = time.perf_counter() + seconds
            while len(spans[0]) < turns or time.perf_counter() < end_s:
                for span, runs in zip(spans, contenders, strict=True):
                    span.append((_event(), _event()))
                    span[-1][0].record()
                    runs.run()
                    span[-1][1].record()
            spans[-1][-1][1].synchronize()
        medians = [
            statistics.median(begin.elapsed_time(end) for begin, end in span) for span in spans
        ]
        return [
            # A copy: the graph's memory goes with the graph.
            Rotation(median * 1e3 / calls_per_turn, runs.result.clone(), is_graph)
            for median, runs in zip(medians, contenders, strict=True)
        ]


def _prepare_rotation(
    calls: Sequence[Call], order: Sequence[int], device: torch.device, capture: bool
) -> tuple[list[_Runs], bool]:
    try:
        return [_Runs(call, order, device, capture) for call in calls], capture
    except RuntimeError as error:
        if not capture:
            raise
        warnings.warn(f"nf12: timed call by call, since capture failed: {error}", stacklevel=3)
        return [_Runs(call, order, device, False) for call in calls], False


def _rotate_on_host(
    calls: Sequence[Call], copies: int, calls_per_turn: int, turns: int, seconds: float
) -> list[Rotation]:
    times: list[list[float]] = [[] for _ in calls]
    results = [torch.empty(0) for _ in calls]
    end_s = time.perf_counter() + seconds
    turn = 1
    while len(times[0]) < turns or time.perf_counter() < end_s:
        for i, call in enumerate(calls):
            start_s = time.perf_counter()
            for j in range(calls_per_turn):
                results[i] = call((turn + j) % copies)
            times[i].append((time.perf_counter() - start_s) * 1e6 / calls_per_turn)
        turn += calls_per_turn
    return [
        Rotation(statistics.median(spent), result, False)
        for spent, result in zip(times, results, strict=True)
    ]


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

    def run(self) -> None:
        """Once over the copies; on a GPU only enqueued."""
        if self.graph is None:
            self._run_all()
        else:
            self.graph.replay()

    def time_us(self, flush: CacheFlush | None) -> float:
        """Microseconds a call."""
        if self.device.type != "cuda":
            if flush is not None:
                flush()
            start = time.perf_counter()
            self.run()
            return (time.perf_counter() - start) * 1e6 / len(self.copies)
        with torch.cuda.device(self.device):
            begin, end = _event(), _event()
            if flush is not None:
                flush()  # the host is far ahead when this ends
            begin.record()
            self.run()
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
