"""bits is 12 and nothing else, wherever a user can say it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import nf12

REFUSED: list[Any] = [
    0, 1, 2, 4, 8, 11, 13, 16, -12, 12.0, 12.5, "12", "nf12", None, True, float("nan"), [12], (12,),
    torch.tensor(12),
]  # fmt: skip


@pytest.mark.parametrize("bits", REFUSED, ids=repr)
def test_other_bits_are_refused_with_the_reason(bits: Any) -> None:
    with pytest.raises(ValueError) as caught:
        nf12.check_bits(bits)
    text = str(caught.value)
    assert repr(bits) in text, "the value"
    assert "must be 12" in text, "the rule"
    assert "sign and mantissa" in text and "exponent" in text, "the reason"


@pytest.mark.parametrize("bits", REFUSED, ids=repr)
def test_pack_refuses_before_it_looks_at_the_weight(bits: Any) -> None:
    with pytest.raises(ValueError, match="must be 12"):
        nf12.pack(torch.ones(4, dtype=torch.int8), bits=bits)


def test_twelve_is_taken() -> None:
    nf12.check_bits(12)
    w = torch.ones(16, 64, dtype=torch.bfloat16)
    explicit, default = nf12.pack(w, bits=12), nf12.pack(w)
    assert isinstance(explicit, nf12.PackedWeight) and isinstance(default, nf12.PackedWeight)
    assert torch.equal(explicit.payload, default.payload)


def test_twelve_bits_a_weight_is_what_a_clean_weight_takes() -> None:
    packed = nf12.pack(torch.full((1024, 1024), 0.5).bfloat16())
    assert isinstance(packed, nf12.PackedWeight)
    tiles = 64 * 16
    assert 8 * packed.nbytes == 12 * 1024 * 1024 + 32 * tiles + 128
    assert packed.bits_per_weight == pytest.approx(12.03, abs=0.01)
