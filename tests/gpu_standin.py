"""GPUs without a GPU: CPU tensors taken for memory of a device whose HIP driver is tests/standin,
where each launch runs in the host model of its kernel."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import code_objects

from nf12 import _C  # type: ignore[attr-defined]

ROOT = Path(__file__).resolve().parent.parent


@functools.cache
def library() -> Path:
    """The driver: where NF12_STANDIN says, else built (once, then only what changed)."""
    if "NF12_STANDIN" in os.environ:
        return Path(os.environ["NF12_STANDIN"]).resolve(strict=True)
    if shutil.which("cmake") is None:
        code_objects.do_without("no cmake to build the stand-in driver with")
    build = ROOT / "build" / "standin"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    source = ROOT / "tests" / "standin"
    for command in (
        ["cmake", "-S", str(source), "-B", str(build), *generator],
        ["cmake", "--build", str(build), "--parallel", str(os.cpu_count() or 1)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "libnf12_standin.so"


class StandIn:
    """A driver with the devices of a test, from the state of a fresh process."""

    def __init__(self, *devices: tuple[str, int]) -> None:
        self._c = ctypes.CDLL(str(library()))
        self._c.standin_call.restype = ctypes.c_char_p
        self._c.standin_stream.restype = ctypes.c_void_p
        self._seen = 0
        self._c.standin_reset()
        for arch, multiprocessors in devices:
            self._c.standin_add_device(arch.encode(), multiprocessors)
        _C.pretend_gpu(str(library()), -1)

    @contextlib.contextmanager
    def on(self, device: int = 0, stream: int = 0, slice_bytes: int = 0) -> Iterator[None]:
        """Inside, the operators take CPU tensors for memory of this device."""
        _C.pretend_gpu(None, device, stream, slice_bytes)
        try:
            yield
        finally:
            _C.pretend_gpu(None, -1)

    def forget_devices(self) -> None:
        """As in a process that has used none yet."""
        _C.pretend_gpu(str(library()), -1)

    def stream(self, device: int) -> int:
        stream: int = self._c.standin_stream(device)
        return stream

    def fail(self, function: str, text: str, *, skip: int = 0, status: int = 719) -> None:
        self._c.standin_fail(function.encode(), skip, status, text.encode())

    def capture(self, capturing: bool) -> None:
        self._c.standin_capture(capturing)

    def last_error(self) -> int:
        error: int = self._c.standin_last_error()
        return error

    def calls(self) -> list[dict[str, Any]]:
        """What the driver was asked since the last time this was asked."""
        calls = []
        while (text := self._c.standin_call(self._seen)) is not None:
            calls.append(json.loads(text))
            self._seen += 1
        return calls

    def launches(self) -> list[dict[str, Any]]:
        return [call for call in self.calls() if call["call"] == "hipModuleLaunchKernel"]

    def kernels(self) -> list[str]:
        """Names of the kernels launched since the last time calls were asked for."""
        return [launch["kernel"].removeprefix("nf12_") for launch in self.launches()]
