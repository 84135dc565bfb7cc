"""Faults of the readable specification in Python."""

from __future__ import annotations

from mutant import Mutant

SPECIFICATION = [
    Mutant(
        "specification_swaps_codes",
        "nf12/packing.py",
        "_LOW_NIBBLES = [0, 4, 1, 5]",
        "_LOW_NIBBLES = [0, 1, 4, 5]",
        "test_nf12_ad_codec.py",
    ),
    Mutant(
        "specification_shares_the_last_raw_tile",
        "nf12/packing.py",
        'numbers, "amin")',
        'numbers, "amax", include_self=False)',
        "test_nf12_ad_codec.py",
    ),
]
