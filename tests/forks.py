"""Scripts in processes of their own, forked from one that has imported nf12 once: importing torch
takes seconds, and tests of crashes, limits and signals need many processes."""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent

# Answers each request with two lines: the process id, then the exit code (negative: the signal).
SERVER = """
import json, os, signal, sys, traceback
# A shell starts background jobs with Ctrl-C ignored, and Python leaves it so.
signal.signal(signal.SIGINT, signal.default_int_handler)
import torch, nf12, nf12.checkpoint, nf12.cli, checkpoints
for line in sys.stdin:
    request = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for descriptor, path in ((1, request["stdout"]), (2, request["stderr"])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        sys.argv = ["script", *request["arguments"]]
        code = 0
        try:
            exec(compile(request["script"], "script", "exec"), {"__name__": "__main__"})
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Done:
    """How a script ended; `code` is negative for a signal."""

    code: int
    stdout: str
    stderr: str


class Forks:
    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=TESTS,
        )
        atexit.register(self._server.kill)
        self._output = Path(tempfile.mkdtemp(prefix="nf12-forks-"))

    def run(self, script: str, *arguments: object) -> Done:
        """Runs a script to its end; it finds `arguments` in sys.argv."""
        self.start(script, *arguments)
        return self.wait()

    def start(self, script: str, *arguments: object) -> int:
        """Starts a script and returns its process id. `wait` before the next one."""
        request = {
            "script": textwrap.dedent(script),
            "arguments": [str(argument) for argument in arguments],
            "stdout": str(self._output / "stdout"),
            "stderr": str(self._output / "stderr"),
        }
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return self._answer()

    def wait(self) -> Done:
        code = self._answer()
        texts = [(self._output / name).read_text() for name in ("stdout", "stderr")]
        return Done(code, *texts)

    def _answer(self) -> int:
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())


@functools.cache
def forks() -> Forks:
    """The one server of a test run."""
    return Forks()
