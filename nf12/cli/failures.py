"""Exit codes, and errors as one line on stderr."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import typer

from nf12.backend import BackendUnavailable
from nf12.checkpoint import CheckpointError
from nf12.checkpoint.staging import partial_folder
from nf12.packing import FormatError

OK = 0
DIFFERENT = 1  # verify found a difference, selftest a fault, bench a wrong value
BAD_INPUT = 2  # usage, or files that break a rule
SYSTEM = 3  # disk full, no permission, out of memory
INTERRUPTED = 130

EXIT_CODES = """Exit codes: 0 done, 1 the checkpoints differ, the self-test failed or a benchmark's
values are wrong, 2 wrong usage or bad input, 3 the system refused (disk full, no permission, out of
memory), 130 interrupted."""


@contextmanager
def exit_codes(command: str, target: Path | None = None) -> Iterator[None]:
    """Turns what a command raises into one line on stderr and an exit code.

    A command that writes `target` can be resumed where it has begun to.
    """
    try:
        yield
    except KeyboardInterrupt:
        _fail(f"nf12 {command}: interrupted{_resume(target)}", INTERRUPTED)
    except (CheckpointError, FormatError, BackendUnavailable) as error:
        _fail(f"nf12 {command}: {error}", BAD_INPUT)
    except (MemoryError, torch.OutOfMemoryError):
        _fail(f"nf12 {command}: out of memory{_resume(target)}", SYSTEM)
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of our output went away: nothing left to say
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(SYSTEM) from None
        path = f"{error.filename}: " if error.filename else ""
        _fail(f"nf12 {command}: {path}{error.strerror or error}{_resume(target)}", SYSTEM)


def _resume(target: Path | None) -> str:
    if target is None or not partial_folder(Path(os.path.realpath(target))).exists():
        return ""
    return "; what is done is kept: run the same command again to go on"


def _fail(text: str, code: int) -> None:
    print(text, file=sys.stderr)
    raise typer.Exit(code) from None
