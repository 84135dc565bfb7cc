"""Where a model holds weights, and how a packed one takes such a place.

nn.Linear and nn.Embedding are replaced by the modules of nf12; every other module keeps its class
and its code, and reads the weight through a property (nf12.packed_parameter).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from nf12.embedding import Embedding
from nf12.linear import Linear, cast_bias
from nf12.packed_module import PackedModule
from nf12.packed_parameter import pack_parameter, tie_parameter
from nf12.packed_weight import PackedWeight

# By id of a module: each (parent, name) that it hangs at.
Parents = dict[int, list[tuple[nn.Module, str]]]


@dataclass(frozen=True)
class Use:
    """One place that holds a weight: parameter `parameter` of `module`."""

    module: nn.Module
    parameter: str
    paths: tuple[str, ...]  # of the module in the model, "" for the model itself

    @property
    def names(self) -> list[str]:
        return [f"{path}.{self.parameter}" if path else self.parameter for path in self.paths]


def parents_of(model: nn.Module) -> Parents:
    """Where every module of `model` hangs."""
    parents: Parents = {}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None:
                parents.setdefault(id(child), []).append((parent, name))
    return parents


def reason_to_stay_dense(use: Use, parents: Parents, *, cast: bool = False) -> str | None:
    """Why the module of `use` does not let its weight be packed; None if it does."""
    module = use.module
    if isinstance(module, nn.utils.parametrize.ParametrizationList):
        return "is the source of a parametrization"
    if isinstance(module, nn.RNNBase):
        return f"{type(module).__name__} keeps references to its weights"
    if getattr(module, "max_norm", None) is not None:
        return "max_norm rescales rows in place"
    if not _is_replaced(use):
        return None
    kind = type(module).__name__
    if id(module) not in parents:
        return f"the model itself is the {kind}: use nf12.{kind}.from_{kind.lower()}"
    hooks = [name for name in _HOOKS if getattr(module, name)]
    if hooks or "forward" in module.__dict__:
        return f"the {kind} has {'hooks' if hooks else 'a forward of its own'}"
    if isinstance(module, nn.Embedding) and (module.sparse or module.scale_grad_by_freq):
        return "sparse and scale_grad_by_freq are for training"
    if isinstance(module, nn.Linear) and module.bias is not None:
        dtype = module.bias.dtype
        if dtype != torch.bfloat16 and not (cast and dtype in (torch.float16, torch.float32)):
            return f"bias has dtype {dtype}"
    return None


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _is_replaced(use: Use) -> bool:
    """A subclass may have a forward of its own: only the exact types are replaced."""
    return type(use.module) in (nn.Linear, nn.Embedding) and use.parameter == "weight"


def place(
    use: Use,
    packed: PackedWeight,
    parents: Parents,
    *,
    owner: tuple[PackedModule, str] | None = None,
    cast: bool = False,
) -> PackedModule:
    """Puts `packed` where `use` has its dense parameter; returns the module that holds it now.

    With `owner`, a module and the weight's name there, the two share that one weight. `cast` rounds
    the bias of a Linear to BF16.
    """
    old = use.module
    if not _is_replaced(use):
        if owner is None:
            return pack_parameter(old, use.parameter, packed)
        return tie_parameter(old, use.parameter, *owner)
    new: PackedModule
    if isinstance(old, nn.Linear):
        new = Linear(packed, cast_bias(old.bias, cast))
    else:
        assert isinstance(old, nn.Embedding)
        new = Embedding(packed, old.padding_idx)
    if owner is not None:
        new.tie("weight", *owner)
    new.train(old.training)
    for parent, name in parents[id(old)]:
        parent._modules[name] = new
    return new
