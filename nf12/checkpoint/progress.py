"""What long jobs tell their caller while they run."""

from __future__ import annotations


class Progress:
    """Receives a job's progress in bytes of the source. This one ignores it."""

    def start(self, total_bytes: int, done_bytes: int = 0) -> None:
        """The job begins; `done_bytes` were done by an earlier, interrupted run."""

    def advance(self, name: str, nbytes: int) -> None:
        """A tensor or file is done."""
