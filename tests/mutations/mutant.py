"""A seeded fault: one change of the source that the suite must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """The file, a text that occurs in it exactly once, and what that text becomes."""

    name: str
    file: str
    old: str
    new: str
    noticed_by: str  # a C++ test program, perhaps with names of its tests; or a pytest file
