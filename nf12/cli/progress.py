"""Progress on a terminal: bytes or counts, rate, time left. Silent where stderr is a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bar

from nf12.checkpoint import Progress

T = TypeVar("T")


class _Terminal(Progress):
    def __init__(self, bar: Bar, verb: str) -> None:
        self._bar = bar
        self._task = bar.add_task(verb, total=None, name="")

    def start(self, total_bytes: int, done_bytes: int = 0) -> None:
        # Left out of the total: counting an earlier run's bytes would falsify rate and time left.
        self._bar.update(self._task, total=total_bytes - done_bytes)

    def advance(self, name: str, nbytes: int) -> None:
        self._bar.update(self._task, advance=nbytes, name=name)


def counted(items: Iterable[T], verb: str, total: int) -> Iterator[T]:
    """The items, with a progress bar of their number headed by `verb`, gone when done."""
    if not sys.stderr.isatty():
        yield from items
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=total)
        for item in items:
            bar.update(task, advance=1)
            yield item


@contextmanager
def terminal_progress(verb: str) -> Iterator[Progress]:
    """A progress bar headed by `verb`, gone when done."""
    if not sys.stderr.isatty():
        yield Progress()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[name]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Terminal(bar, verb)
