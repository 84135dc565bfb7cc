"""`nf12.Linear`: nn.Linear with its weight in NF12."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from nf12.backend import resolve_backend
from nf12.functional import direct_gemm, gemm_error, gemm_operands, pack
from nf12.packed_module import NOT_LOADED, PackedModule
from nf12.packed_weight import PackedWeight, StaysDense


class Linear(PackedModule):
    """`y = x W^T + bias` with W frozen in 12 bits; x BF16 [..., in_features].

    Gradients flow to x and to bias. Dtype conversions of the module leave W and bias in BF16.
    Built by `from_linear`, by `Linear(packed, bias)`, or by `empty` for a loader.
    """

    in_features: int
    out_features: int
    bias: nn.Parameter | None

    def __init__(self, packed: PackedWeight, bias: Tensor | None = None) -> None:
        """`packed` [N, K] is shared, not copied; `bias` BF16 [N], a Parameter is taken as it is."""
        super().__init__()
        if packed.num_experts is not None:
            raise ValueError(f"nf12.Linear: weight has shape {list(packed.shape)}, expected [N, K]")
        self.hold("weight", packed)
        self._set_features(packed.out_features, packed.in_features, bias)

    def _set_features(self, out_features: int, in_features: int, bias: Tensor | None) -> None:
        self.out_features, self.in_features = out_features, in_features
        if bias is not None:
            if bias.dtype != torch.bfloat16:
                raise TypeError(f"nf12.Linear: bias has dtype {bias.dtype}, expected bfloat16")
            if tuple(bias.shape) != (out_features,):
                raise ValueError(
                    f"nf12.Linear: bias has shape {list(bias.shape)}, expected [{out_features}]"
                )
            bias = bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias, False)
        self.register_parameter("bias", bias)

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, *, base: int | None = None, cast: bool = False
    ) -> Linear:
        """Packs the weight of `linear` and takes over its bias and training mode.

        ValueError if the weight would not shrink; errors of `nf12.pack` else. With `cast` FP16 and
        FP32 weights and biases are rounded to BF16.
        """
        packed = pack(linear.weight, base=base, cast=cast)
        if isinstance(packed, StaysDense):
            raise ValueError(f"nf12.Linear: {packed.reason}")
        module = cls(packed, cast_bias(linear.bias, cast))
        return module.train(linear.training)

    @classmethod
    def empty(
        cls,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        escapes: int = 0,
        device: torch.device | str | None = None,
    ) -> Linear:
        """A module without data and with a side table of `escapes` entries, for a loader to fill:
        by load_state_dict, or by setting the buffers and calling `refresh_packed`."""
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        module.hold_empty("weight", (out_features, in_features), escapes=escapes, device=device)
        values = torch.empty(out_features, dtype=torch.bfloat16, device=device) if bias else None
        module._set_features(out_features, in_features, values)
        return module

    @classmethod
    def tied_to(cls, owner: PackedModule, bias: Tensor | None = None) -> Linear:
        """A Linear that multiplies by the weight that an nf12.Embedding or nf12.Linear holds."""
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        module.tie("weight", owner)
        operands = module.operands()
        module._set_features(operands[3], operands[4], bias)
        return module

    @property
    def weight(self) -> Tensor:
        """A fresh dense copy of W, BF16 [out_features, in_features]: for code that looks at it."""
        return self.unpack_weight()

    def forward(self, x: Tensor) -> Tensor:
        # For one token the host's time is the layer's (benchmarks/bench_host.py): the usual call
        # looks up little, nothing through nn.Module.__getattr__.
        if is_dynamo_compiling():
            return self._forward(x)
        try:
            n, k, base = self._packed_sizes["weight"]
            bias = self._parameters["bias"]
        except KeyError:  # tied, or a parametrization holds the bias
            return self._forward(x)
        op = direct_gemm(x.device)
        wants_gradient = torch.is_grad_enabled() and (
            x.requires_grad or (bias is not None and bias.requires_grad)
        )
        if op is None or wants_gradient or x.dtype is not torch.bfloat16:
            return self._forward(x)
        w = self._buffers
        try:
            return op(
                x, w["weight_payload"], w["weight_index"], w["weight_escapes"], n, k, base, bias
            )
        except RuntimeError as error:
            raise gemm_error(error, x, self.operands(), bias) from None

    def _forward(self, x: Tensor) -> Tensor:
        """`forward` whatever x, the weight and the bias are."""
        return gemm_operands(x, self.operands(), self.bias, resolve_backend("auto", x.device))

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, {describe(self)}"
        )

    def _tensors_of_fixed_dtype(self) -> list[Tensor]:
        tensors = super()._tensors_of_fixed_dtype()
        if self.bias is not None:
            tensors += [self.bias] if self.bias.grad is None else [self.bias, self.bias.grad]
        return tensors


def cast_bias(bias: nn.Parameter | None, cast: bool) -> nn.Parameter | None:
    """The bias itself, or with `cast` a new one rounded to BF16."""
    if bias is None or not cast or bias.dtype == torch.bfloat16:
        return bias
    return nn.Parameter(bias.detach().to(torch.bfloat16), bias.requires_grad)


def describe(module: PackedModule) -> str:
    """For extra_repr: base and size of the weight, or that there is none yet."""
    if "weight" in module._packed_owner:
        return "tied"
    if module._packed_sizes["weight"][2] == NOT_LOADED:
        return "not loaded"
    packed = module.packed()
    return f"base={packed.base}, bits_per_weight={packed.bits_per_weight:.2f}"
