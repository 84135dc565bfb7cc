"""Every test starts from the same numeric settings, and leaves them so."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
import torch

# CI machines stall at times: a deadline would make a correct property fail.
hypothesis.settings.register_profile("nf12", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("nf12")


@pytest.fixture(autouse=True)
def numeric_settings() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_flush_denormal(False)
    torch.set_num_threads(threads)
    assert torch.get_default_dtype() == torch.float32, "a test changed the default dtype"


@pytest.fixture
def flush_denormal() -> Iterator[None]:
    """Subnormal floats read as zero, as a user's torch.set_flush_denormal(True) makes them."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no flush-to-zero mode")
    yield
    torch.set_flush_denormal(False)
