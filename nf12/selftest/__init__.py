"""The shipped kernels against the reference on this very machine: `nf12 selftest`.

A binary can be wrong where a local build is right: another compiler, another processor, a card that
nobody here has. So every kernel that this machine can run is held against nf12.packing, the
specification in torch operations, and float64.

targets.py      what there is to check on this machine
checks.py       one target's checks, in a process of its own
cases.py        weights that reach every kind of tile
subnormals.py   whether a gemm kernel keeps or flushes subnormal numbers
report.py       everything as one JSON document
"""

from nf12.selftest.checks import Mismatch, Result, Target
from nf12.selftest.report import make_report
from nf12.selftest.targets import find_targets, run

__all__ = ["Mismatch", "Result", "Target", "find_targets", "make_report", "run"]
