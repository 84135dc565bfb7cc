"""What there is to check on a machine, and the processes that do it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import torch

import nf12
from nf12.backend import gpu_backend, unavailable_reason
from nf12.functional import AUTO_KERNEL
from nf12.selftest.checks import Result, Target

LEVEL_VARIABLE = "NF12_CPU_LEVEL"
TIMEOUT_S = 300
PROGRAM = "from nf12.selftest import checks; checks.print_target()"


def find_targets() -> list[Target]:
    """Every CPU level that this processor runs, and on each GPU every kernel and backend torch."""
    levels = nf12.info()["cpu"]["supported"]
    found = [Target(nf12.Backend.CPU, "cpu", level) for level in levels]
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(gpus):
        device, backend = f"cuda:{index}", gpu_backend()
        if unavailable_reason(backend, index) is None:
            kernels = (AUTO_KERNEL, *nf12.kernels(backend))
            found += [Target(backend, device, kernel) for kernel in kernels]
        found.append(Target(nf12.Backend.TORCH, device))
    return found


def run() -> Iterator[Result]:
    """Runs every check of every target of this machine."""
    library = nf12.info()["library"]
    if not library["loaded"]:
        yield Result("none", "library", False, str(library["reason"]), 0.0)
        return
    for target in find_targets():
        yield from run_target(target)


def run_target(target: Target) -> list[Result]:
    begin = time.monotonic()
    command = [sys.executable, "-c", PROGRAM, target.backend.value, target.device, target.kernel]
    environment = dict(os.environ)
    if target.backend is nf12.Backend.CPU:
        environment[LEVEL_VARIABLE] = target.kernel
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
        return [Result(**fields) for fields in json.loads(done.stdout)]
    except subprocess.SubprocessError as error:
        output = str(getattr(error, "stderr", "") or "").strip().splitlines()
        detail = "; ".join([str(error), *output[-1:]])
        return [Result(target.name, "process", False, detail, time.monotonic() - begin)]
