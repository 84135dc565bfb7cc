"""Writing a checkpoint so that it is there whole or not at all, and can be resumed.

    TARGET.nf12-partial/
      journal      one JSON line for the job, then one for each tensor and file that is done
      tree/        what becomes TARGET by one rename at the end

The journal never names bytes that might not be on disk: data are synced first, then the lines. A
rerun cuts each file back to its last journalled tensor and goes on from there, so that it ends with
the bytes of a run that was never interrupted.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from nf12.checkpoint.errors import CheckpointError
from nf12.checkpoint.header import TensorEntry, render_header
from nf12.packing import FormatError

# Work lost at most by an interruption; each sync costs about a disk flush.
SYNC_BYTES = 256 << 20
PARTIAL_SUFFIX = ".nf12-partial"


@dataclass(frozen=True)
class Part:
    """One tensor to write; `chunks` together hold its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Iterable[memoryview]


def partial_folder(target: Path) -> Path:
    """Where a job that writes `target` keeps what is done."""
    return target.with_name(target.name + PARTIAL_SUFFIX)


class Staging:
    """The partial target of one job. Use as a context manager; `publish` ends the job.

    Args:
        target: folder or file to come into being.
        job: what is being done to what: a rerun resumes only the same job.
        restart: drop what another run left, whatever its job was.

    Raises:
        CheckpointError: the target exists, another process is writing it, or what an earlier run
            left belongs to another job.
        OSError: the folder cannot be written.
    """

    def __init__(self, target: Path, job: Mapping[str, Any], *, restart: bool = False) -> None:
        self.target = target
        self.folder = partial_folder(target)
        self.tree = self.folder / "tree"
        self._job = json.loads(json.dumps(dict(job)))
        self._pending: list[dict[str, Any]] = []
        self.folder.mkdir(parents=True, exist_ok=True)
        self._journal = (self.folder / "journal").open("a+b", buffering=0)
        try:
            self._lock()
            lines = self._read_journal(restart)
            self.already_published = bool(lines) and not exists(self.tree) and exists(target)
            if not self.already_published:
                refuse_existing(target)
                self.tree.mkdir(exist_ok=True)
        except BaseException:
            self._journal.close()
            self._drop_if_unused()
            raise
        self._done = {line["file"]: line["done"] for line in lines if "done" in line}
        self._records: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            if "tensor" in line:
                self._records.setdefault(line["file"], []).append(line)

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, FormatError):  # the source is damaged: no rerun can go on from here
            shutil.rmtree(self.folder)
        self._journal.close()

    def records(self, file_name: str) -> list[dict[str, Any]]:
        """The journal's lines for the tensors of a file that need not be written again."""
        return self._records.setdefault(file_name, [])

    def is_done(self, file_name: str) -> bool:
        """Whether the file was finished, by this run or an earlier one."""
        if file_name not in self._done:
            return False
        path = self.tree / file_name
        if not path.is_file() or path.stat().st_size != self._done[file_name]:
            raise CheckpointError(
                f"{path}: changed since it was written; pass --restart to begin again"
            )
        return True

    def write_file(self, file_name: str, chunks: Iterable[bytes | memoryview], mode: int) -> None:
        """Writes a file that holds no tensors."""
        path = self.tree / file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        with named_errors(path), path.open("wb", buffering=0) as file:
            for chunk in chunks:
                write_all(file.fileno(), memoryview(chunk))
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        sync_folder(path.parent)
        self.mark_done(file_name, path.stat().st_size)

    def add_record(self, file_name: str, record: dict[str, Any]) -> None:
        """Remembers a tensor; `flush` makes it durable once the data are."""
        line = {"file": file_name, **record}
        self.records(file_name).append(line)
        self._pending.append(line)

    def mark_done(self, file_name: str, size: int) -> None:
        self._done[file_name] = size
        self._pending.append({"file": file_name, "done": size})
        self.flush()

    def flush(self) -> None:
        """Appends the pending lines; the data they name must be on disk already."""
        text = b"".join(json.dumps(line).encode() + b"\n" for line in self._pending)
        with named_errors(self.folder / "journal"):
            write_all(self._journal.fileno(), memoryview(text))
            os.fsync(self._journal.fileno())
        self._pending.clear()

    def publish(self) -> None:
        """Makes the finished tree the target, in one rename, and removes the rest."""
        if not self.already_published:
            refuse_existing(self.target)
            sync_folder(self.tree)
            # A single file target takes the only file of the tree.
            finished = self.tree
            if self._job.get("single_file"):
                (finished,) = self.tree.iterdir()
            os.rename(finished, self.target)
            sync_folder(self.target.parent)
        # The journal goes last: it tells a rerun that the target is this job's.
        shutil.rmtree(self.tree, ignore_errors=True)
        (self.folder / "journal").unlink()
        self.folder.rmdir()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"{self.folder}: another process is writing it") from None

    def _read_journal(self, restart: bool) -> list[dict[str, Any]]:
        """The complete lines after the job's; a line cut short by a crash is dropped."""
        self._journal.seek(0)
        lines: list[dict[str, Any]] = []
        kept = 0
        for text in self._journal.read().splitlines(keepends=True):
            try:
                line = json.loads(text)
            except ValueError:
                break
            if not text.endswith(b"\n") or not isinstance(line, dict):
                break
            lines.append(line)
            kept += len(text)
        if lines and not restart:
            self._refuse_other_job(lines[0])
            self._journal.truncate(kept)
            return lines[1:]
        if self.tree.exists():
            shutil.rmtree(self.tree)
        self._journal.truncate(0)
        self._pending.append(self._job)
        self.flush()
        return []

    def _refuse_other_job(self, earlier: dict[str, Any]) -> None:
        for key in sorted(self._job.keys() | earlier.keys()):
            before, now = earlier.get(key), self._job.get(key)
            if before != now:
                what = _first_change(before, now) if key == "source" else f"{before} -> {now}"
                raise CheckpointError(
                    f"{self.folder}: the interrupted run cannot be resumed, {key} changed: {what};"
                    " pass --restart to drop it and begin again"
                )

    def _drop_if_unused(self) -> None:
        """Removes a folder that this very run made and put nothing into."""
        if not self.tree.exists():
            with suppress(OSError):
                (self.folder / "journal").unlink()
                self.folder.rmdir()


class ShardWriter:
    """Streams tensors into one safetensors file, whose header is written last.

    The length of a packed weight's side table is known only once it is packed. So the header's
    place is reserved by an upper bound that depends on the plan alone, and filled up with spaces.
    """

    def __init__(self, staging: Staging, file_name: str, header_bytes: int) -> None:
        self._staging = staging
        self._file_name = file_name
        self._header_bytes = header_bytes
        self.path = staging.tree / file_name
        self.entries = [
            TensorEntry(name, dtype, tuple(shape), begin, end)
            for record in staging.records(file_name)
            for name, dtype, shape, begin, end in record["parts"]
        ]
        self._position = self.entries[-1].end if self.entries else 0
        self._unsynced = 0
        self.path.touch()
        self._file = self.path.open("r+b", buffering=0)
        if self.path.stat().st_size < self._position:
            self._file.close()
            raise CheckpointError(
                f"{self.path}: shorter than its journal says; pass --restart to begin again"
            )
        os.truncate(self.path, header_bytes + self._position if self._position else 0)
        self._file.seek(header_bytes + self._position)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *unused: object) -> None:
        self._file.close()

    def append(self, tensor: str, parts: Sequence[Part], note: Mapping[str, Any]) -> None:
        """Writes what becomes of one source tensor; `note` is kept in the journal beside it."""
        written = []
        with named_errors(self.path):
            for part in parts:
                begin = self._position
                for chunk in part.chunks:
                    write_all(self._file.fileno(), chunk)
                    self._position += chunk.nbytes
                written.append(
                    TensorEntry(part.name, part.dtype, part.shape, begin, self._position)
                )
                self._unsynced += self._position - begin
        self.entries += written
        rows = [[e.name, e.dtype, list(e.shape), e.begin, e.end] for e in written]
        record = {"tensor": tensor, "parts": rows, "note": dict(note)}
        self._staging.add_record(self._file_name, record)
        if self._unsynced >= SYNC_BYTES:
            self._sync()
            self._staging.flush()

    def finish(self, metadata: Mapping[str, str]) -> None:
        """Writes the header, and makes the file durable and done."""
        header = render_header(self.entries, metadata, self._header_bytes - 8)
        if len(header) != self._header_bytes:
            raise AssertionError(f"{self.path}: {len(header)} bytes of header, reserved less")
        with named_errors(self.path):
            self._file.seek(0)
            write_all(self._file.fileno(), memoryview(header))
        self._sync()
        sync_folder(self.path.parent)
        self._staging.mark_done(self._file_name, self.path.stat().st_size)

    def _sync(self) -> None:
        with named_errors(self.path):
            os.fsync(self._file.fileno())
        self._unsynced = 0


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Puts the path into an OSError that has none: writes to a descriptor know no name."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_all(descriptor: int, view: memoryview) -> None:
    """Writes every byte; one system call takes at most 2 GiB and may take less."""
    view = view.cast("B") if view.nbytes else view
    while view.nbytes:
        view = view[os.write(descriptor, view[: 1 << 30]) :]


def sync_folder(path: Path) -> None:
    """Makes new names in the folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exists(target: Path) -> bool:
    """Whether there is something to lose: an empty folder is none."""
    return target.exists() and not (target.is_dir() and not any(target.iterdir()))


def refuse_existing(target: Path) -> None:
    if exists(target):
        raise CheckpointError(f"{target}: exists already; nf12 replaces nothing")


def _first_change(before: Any, now: Any) -> str:
    files_before = {row[0]: row[1:] for row in before or []}
    files_now = {row[0]: row[1:] for row in now or []}
    for name in sorted(files_before.keys() | files_now.keys()):
        if name not in files_now:
            return f"{name} is gone"
        if name not in files_before:
            return f"{name} is new"
        if files_before[name] != files_now[name]:
            return f"{name} was modified"
    return "order of files"
