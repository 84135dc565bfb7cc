"""transformers: `from_pretrained` of packed checkpoints, packing while loading, saving.

    import nf12
    model = AutoModelForCausalLM.from_pretrained("a converted checkpoint")
    model = AutoModelForCausalLM.from_pretrained("a BF16 checkpoint", quantization_config=Nf12Config())

`import nf12` registers the quantization method "nf12"; nothing here has to be imported for it.
"""

from __future__ import annotations

from nf12.integrations.transformers.config import QUANT_METHOD, Nf12Config
from nf12.integrations.transformers.quantizer import Nf12HfQuantizer

__all__ = ["Nf12Config", "Nf12HfQuantizer", "register"]


def register() -> None:
    """Adds the quantization method "nf12" to transformers' tables. Idempotent."""
    from transformers.quantizers import auto

    if QUANT_METHOD not in auto.AUTO_QUANTIZATION_CONFIG_MAPPING:
        auto.register_quantization_config(QUANT_METHOD)(Nf12Config)
        auto.register_quantizer(QUANT_METHOD)(Nf12HfQuantizer)
