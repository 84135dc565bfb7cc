"""Errors of reading and writing checkpoints."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint, or what was asked of it, breaks a rule; the text names rule and value."""
