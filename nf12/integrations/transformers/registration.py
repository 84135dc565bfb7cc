"""Adds the quantization method "nf12" to transformers' tables."""

from __future__ import annotations

from transformers.quantizers import auto

from nf12.integrations.transformers.config import QUANT_METHOD, Nf12Config
from nf12.integrations.transformers.quantizer import Nf12HfQuantizer


def register() -> None:
    """Idempotent."""
    if QUANT_METHOD not in auto.AUTO_QUANTIZATION_CONFIG_MAPPING:
        auto.register_quantization_config(QUANT_METHOD)(Nf12Config)
        auto.register_quantizer(QUANT_METHOD)(Nf12HfQuantizer)
