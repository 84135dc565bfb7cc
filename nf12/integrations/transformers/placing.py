"""Packed weights take their places in a transformers model, and leave them again.

transformers ties parameters by name (lm_head.weight is model.embed_tokens.weight), nf12 ties
modules. So a tie's names are taken from transformers as soon as one of its weights is packed, and
the tie is made when everything has been loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from nf12.embedding import Embedding
from nf12.linear import Linear
from nf12.packed_module import PackedModule
from nf12.packed_weight import SUFFIXES, PackedWeight
from nf12.placement import Use, parents_of, place, reason_to_stay_dense

logger = logging.get_logger(__name__)

# Where a model keeps the names of its ties while packed weights have taken them.
HIDDEN_TIES = "_nf12_hidden_ties"


class Places:
    """The places that packed weights take in one model, while it is loaded."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parents = parents_of(model)
        self.ties: dict[str, str] = {}  # source by target, taken from transformers

    def __deepcopy__(self, memo: dict[int, Any]) -> Places:
        # transformers copies whatever refers to this once per checkpoint key.
        return self

    def parameter(self, name: str) -> Tensor | None:
        """The dense parameter `name`; None for a buffer."""
        use = self._find(name)
        return use.module._parameters.get(use.parameter)

    def can_hold(self, name: str) -> bool:
        """Whether `name` is a parameter, of a module that lets it be packed."""
        if self.parameter(name) is None:
            return False
        return reason_to_stay_dense(self._find(name), self.parents) is None

    def place(self, name: str, packed: PackedWeight, missing: set[str]) -> None:
        """Replaces the parameter `name` by `packed`, of the same shape, and takes it from the names
        that are still `missing`; likewise those that will be tied to it."""
        module = place(self._find(name), packed, self.parents)
        if not any(tensor.device.type == "meta" for tensor in _own_tensors(module)):
            # Else transformers would run its random initialisation over an unpacked copy.
            module.__dict__["_is_hf_initialized"] = True
        missing.discard(name)
        tied: dict[str, str] = self.model.all_tied_weights_keys  # type: ignore[assignment]
        root = tied.get(name, name)
        for target in [target for target, source in tied.items() if source == root]:
            self.ties[target] = tied.pop(target)
            missing.difference_update((target, root))

    def finish(self) -> None:
        """Makes the ties of packed weights, once everything has been loaded."""
        pending = list(self.ties.items())
        while made := [pair for pair in pending if self._tie(*pair)]:
            pending = [pair for pair in pending if pair not in made]
        _hide_ties(self.model, {*self.ties, *self.ties.values()})

    def _tie(self, target: str, source: str) -> bool:
        """Ties two weights; False as long as neither has been loaded."""
        ends = [self._find(source), self._find(target)]
        if all(_is_packed(use) for use in ends):
            self._tie_if_equal(*ends)
            return True
        if not any(_is_packed(use) for use in ends):
            return False
        owner, other = ends if _is_packed(ends[0]) else reversed(ends)
        weight = other.module._parameters.get(other.parameter)
        if weight is not None and weight.device.type == "meta":
            packed = _module(owner).packed(owner.parameter)
            place(other, packed, self.parents, owner=(_module(owner), owner.parameter))
        return True

    def _tie_if_equal(self, source: Use, target: Use) -> None:
        first = _module(source).operands(source.parameter)
        second = _module(target).operands(target.parameter)
        pairs = zip(first[:3], second[:3], strict=True)
        if first[3:] == second[3:] and all(torch.equal(a, b) for a, b in pairs):
            _module(target).tie(target.parameter, _module(source), source.parameter)
        else:
            logger.warning(
                f"nf12: {target.names[0]} and {source.names[0]}, which the model ties, are both in"
                " the checkpoint with different values: they are not tied"
            )

    def _find(self, name: str) -> Use:
        path, _, parameter = name.rpartition(".")
        return Use(self.model.get_submodule(path), parameter, (path,))


def _module(use: Use) -> PackedModule:
    assert isinstance(use.module, PackedModule)
    return use.module


def _is_packed(use: Use) -> bool:
    return isinstance(use.module, PackedModule) and use.parameter in use.module.packed_names()


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _names(module: PackedModule) -> list[str]:
    return [*module._packed_sizes, *module._packed_owner]


def packed_parameters(model: nn.Module) -> list[str]:
    """Names of the packed weights of `model`, each name of a tied one."""
    return [
        _join(path, name)
        for path, module in model.named_modules()
        if isinstance(module, PackedModule)
        for name in _names(module)
    ]


def _own_tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


# ---- names of ties ------------------------------------------------------------------------------


def _hide_ties(model: nn.Module, names: set[str]) -> None:
    """Takes `names` out of what `model.tie_weights()` would tie: it looks for parameters."""
    for path, module in model.named_modules():
        if not hasattr(module, "get_expanded_tied_weights_keys"):
            continue
        ties = module.get_expanded_tied_weights_keys()
        kept = {
            target: source for target, source in ties.items() if _join(path, target) not in names
        }
        if len(kept) < len(ties):
            module.__dict__[HIDDEN_TIES] = module._tied_weights_keys
            module.__dict__["_tied_weights_keys"] = kept


def _show_ties(model: nn.Module) -> None:
    for module in model.modules():
        if HIDDEN_TIES in module.__dict__:
            module.__dict__["_tied_weights_keys"] = module.__dict__.pop(HIDDEN_TIES)


# ---- back to dense ------------------------------------------------------------------------------


def restore(model: nn.Module) -> None:
    """Makes every packed weight of `model` a dense parameter again, tied ones one parameter."""
    parents = parents_of(model)
    ties: dict[str, str] = model.all_tied_weights_keys  # type: ignore[assignment]
    dense: dict[tuple[int, str], tuple[str, nn.Parameter]] = {}
    packed = [(path, m) for path, m in model.named_modules() if isinstance(m, PackedModule)]
    for path, module in packed:
        parameters = {}
        for name in _names(module):
            owner, owner_name = module._packed_owner.get(name, (module, name))
            key, full_name = (id(owner), owner_name), _join(path, name)
            if key not in dense:
                dense[key] = (full_name, nn.Parameter(module.unpack_weight(name)))
            source, parameters[name] = dense[key]
            if source != full_name:
                ties[full_name] = source
        new = _dense_module(module, parameters)
        for parent, child in parents.get(id(module), []):
            parent._modules[child] = new
    _show_ties(model)


def _dense_module(module: PackedModule, parameters: dict[str, nn.Parameter]) -> nn.Module:
    """The module of `module`'s kind that holds `parameters` instead of packed weights."""
    new: nn.Module
    if isinstance(module, Linear):
        new = nn.Linear(module.in_features, module.out_features, False, device="meta")
        new.register_parameter("bias", module.bias)
    elif isinstance(module, Embedding):
        size = module.num_embeddings, module.embedding_dim
        new = nn.Embedding(*size, module.padding_idx, device="meta")
    else:
        for name in module._packed_sizes:
            for suffix in SUFFIXES:
                del module._buffers[name + suffix]
        new = module
        new.__class__ = type(module)._unpacked_class  # type: ignore[attr-defined]
        for state in ("_packed_sizes", "_packed_owner"):
            del new.__dict__[state]
    new._parameters.update(parameters)
    return new.train(module.training)
