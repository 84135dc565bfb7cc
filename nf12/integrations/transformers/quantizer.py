"""The HfQuantizer that transformers drives while it loads and saves a model.

Only hooks that transformers 5.17 and 5.24 share are used. The model is built dense on the meta
device, and each packed weight takes its place when it has been read and checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.quantizers.base import HfQuantizer
from transformers.utils import logging

from nf12.checkpoint.errors import CheckpointError
from nf12.functional import BITS
from nf12.integrations.transformers.config import Nf12Config

if TYPE_CHECKING:
    from transformers.core_model_loading import ConversionOps, WeightTransform

# This module is imported while transformers itself is; what is needed later is imported later.

BYTES_A_WEIGHT = BITS / 8
logger = logging.get_logger(__name__)


class Nf12HfQuantizer(HfQuantizer):
    """Loads packed checkpoints (pre_quantized) and packs dense ones while loading."""

    quantization_config: Nf12Config

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        if isinstance(device_map, dict) and "disk" in device_map.values():
            raise ValueError("nf12: device_map has 'disk', packed weights are not offloaded there")

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        if dtype == torch.bfloat16:
            return dtype
        if not self.pre_quantized:
            raise ValueError(
                f"nf12: packing is lossless for BF16 weights, and the model would be loaded as"
                f" {dtype}: pass dtype=torch.bfloat16 to round it to BF16 first"
            )
        logger.warning(
            f"nf12: dtype={dtype} is not available, packed weights are BF16 and their activations"
            " too: loading with torch.bfloat16"
        )
        return torch.bfloat16

    def param_needs_quantization(self, model: nn.Module, param_name: str, **kwargs: Any) -> bool:
        return not self.pre_quantized and self._is_packable(model, param_name)

    def param_element_size(self, model: nn.Module, param_name: str, param: Tensor) -> float:
        if self._is_packable(model, param_name):
            return BYTES_A_WEIGHT
        return float(param.element_size())

    def _is_packable(self, model: nn.Module, name: str) -> bool:
        try:
            parameter = model.get_parameter(name)
        except AttributeError:
            return False  # a buffer
        kept = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
        return (
            parameter.ndim in (2, 3)
            and parameter.dtype == torch.bfloat16
            and self.quantization_config.covers(name)
            and not any(part in kept for part in name.split("."))
        )

    def _process_model_before_weight_loading(
        self, model: nn.Module, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        from nf12.integrations.transformers.loading import PackedNames, packed_names
        from nf12.integrations.transformers.placing import Places

        self.loading_info: Any = None
        self.places = Places(model)
        self.names = PackedNames()
        if not self.pre_quantized:
            return
        files = checkpoint_files or []
        foreign = [file for file in files if not file.endswith(".safetensors")]
        if foreign or not files:
            what = foreign[0] if foreign else "a state_dict"
            raise ValueError(f"nf12: a packed checkpoint is in safetensors files, found {what}")
        self.names = packed_names(files)

    def update_weight_conversions(
        self, weight_conversions: list[WeightTransform], model: nn.Module | None = None
    ) -> list[WeightTransform]:
        from nf12.integrations.transformers.loading import loading_transforms

        return loading_transforms(weight_conversions, self.names, self.places)

    def get_quantize_ops(self) -> ConversionOps:
        from nf12.integrations.transformers.loading import Pack

        return Pack(self.places)

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        from nf12.integrations.transformers.loading import saving_transforms
        from nf12.integrations.transformers.placing import packed_parameters

        self.places.finish()
        self._check_complete(model)
        model.__dict__["_weight_conversions"] = saving_transforms(
            getattr(model, "_weight_conversions", None) or [], packed_parameters(model)
        )
        # What served the loading only: it would keep the model alive, and be copied with it.
        del self.places, self.names, self.loading_info
        return model

    def _check_complete(self, model: nn.Module) -> None:
        """A weight that the checkpoint lacks must not be initialised at random unnoticed.

        transformers reports missing weights and goes on, which is right for the new head of another
        task; a checkpoint that was saved from this very class has to hold all.
        """
        missing = set() if self.loading_info is None else set(self.loading_info.missing_keys)
        if type(model).__name__ not in (getattr(model.config, "architectures", None) or ()):
            from nf12.integrations.transformers.placing import packed_parameters

            modules = {name.rpartition(".")[0] for name in packed_parameters(model)}
            missing = {name for name in missing if name.rpartition(".")[0] in modules}
        if missing:
            raise CheckpointError(
                f"nf12: the checkpoint lacks {', '.join(sorted(missing)[:5])}"
                + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            )

    def _dequantize(self, model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
        from nf12.integrations.transformers.placing import restore

        restore(model)
        return model if dtype in (None, torch.bfloat16) else model.to(dtype)

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        """Packed weights are frozen; gradients pass through them to adapters."""
        return True

    @property
    def is_compileable(self) -> bool:
        return True
