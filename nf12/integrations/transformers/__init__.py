"""transformers: `from_pretrained` of packed checkpoints, packing while loading, saving.

    import nf12
    model = AutoModelForCausalLM.from_pretrained(converted)
    model = AutoModelForCausalLM.from_pretrained(bf16, quantization_config=Nf12Config())

`import nf12` registers the quantization method "nf12"; nothing here has to be imported for it.
"""

from __future__ import annotations

# First of all: what waits for this import (nf12.integrations) needs the modules below complete.
import transformers.quantizers.auto  # noqa: F401

from nf12.integrations.transformers.config import Nf12Config
from nf12.integrations.transformers.quantizer import Nf12HfQuantizer

__all__ = ["Nf12Config", "Nf12HfQuantizer"]
