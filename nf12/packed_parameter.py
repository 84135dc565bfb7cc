"""Packs a parameter of any module where it is: the module's code reads it as before.

For weights that no nf12 module replaces (stacks of experts, convolutions, projections of custom
layers). The module's class becomes a subclass in which the parameter is a property that unpacks,
once for each call of forward and once for each access elsewhere.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from nf12.packed_module import PackedModule
from nf12.packed_weight import PackedWeight


def pack_parameter(module: nn.Module, name: str, packed: PackedWeight) -> PackedModule:
    """Replaces parameter `name` of `module`, in place, by the buffers of `packed`.

    ValueError if there is no such parameter or it has another shape.
    """
    parameter = module._parameters.get(name)
    if parameter is None or parameter.shape != packed.shape:
        found = "none" if parameter is None else list(parameter.shape)
        raise ValueError(
            f"nf12: {type(module).__name__} has for a parameter {name} of shape "
            f"{list(packed.shape)}: {found}"
        )
    host = _host(module, name)
    host.hold(name, packed)
    return host


def tie_parameter(
    module: nn.Module, name: str, owner: PackedModule, owner_name: str
) -> PackedModule:
    """Replaces parameter `name` of `module` by the packed weight that `owner` holds."""
    host = _host(module, name)
    host.tie(name, owner, owner_name)
    return host


def unpack_parameter(module: PackedModule, name: str, parameter: nn.Parameter) -> nn.Module:
    """Undoes `pack_parameter`: `parameter` takes the place of packed weight `name`."""
    module.release(name)
    names = module.packed_names()
    base: type[nn.Module] = type(module)._unpacked_class  # type: ignore[attr-defined]
    kind = _subclass(base, tuple(sorted(names))) if names else base
    module.__class__ = kind  # type: ignore[assignment]
    if not names:
        del module._packed_sizes, module._packed_owner
    module.register_parameter(name, parameter)
    return module


def _host(module: nn.Module, name: str) -> PackedModule:
    base = getattr(type(module), "_unpacked_class", type(module))
    names = {*getattr(type(module), "_packed_names", ()), name}
    del module._parameters[name]
    module.__class__ = _subclass(base, tuple(sorted(names)))
    assert isinstance(module, PackedModule)
    return module


_subclasses: dict[tuple[type[nn.Module], tuple[str, ...]], type[PackedModule]] = {}


def _subclass(base: type[nn.Module], names: tuple[str, ...]) -> type[PackedModule]:
    """Subclass of `base` in which `names` are properties. One for all modules alike."""
    if (base, names) not in _subclasses:
        _subclasses[base, names] = _create_subclass(base, names)
    return _subclasses[base, names]


def _create_subclass(base: type[nn.Module], names: tuple[str, ...]) -> type[PackedModule]:

    def read(name: str) -> property:
        def get(self: PackedModule) -> Tensor:
            dense: dict[str, Tensor] | None = self.__dict__.get("_dense")
            if dense is None:
                return self.unpack_weight(name)
            if name not in dense:
                dense[name] = self.unpack_weight(name)
            return dense[name]

        return property(get, doc=f"{name}, unpacked to BF16")

    @functools.wraps(base.forward)
    def forward(self: PackedModule, *arguments: Any, **keywords: Any) -> Any:
        if torch.compiler.is_compiling() or "_dense" in self.__dict__:
            return base.forward(self, *arguments, **keywords)
        self.__dict__["_dense"] = {}
        try:
            return base.forward(self, *arguments, **keywords)
        finally:
            self.__dict__.pop("_dense", None)

    def reduce(self: PackedModule, protocol: Any) -> tuple[Any, ...]:
        state = {k: v for k, v in self.__dict__.items() if k != "_dense"}
        return _rebuild, (base, names), state

    body: dict[str, Any] = {name: read(name) for name in names}
    body |= {
        "__doc__": base.__doc__,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__reduce_ex__": reduce,
        "_packed_names": names,
        "_unpacked_class": base,
        "forward": forward,
    }
    return type(base.__name__, (PackedModule, base), body)


def _rebuild(base: type[nn.Module], names: tuple[str, ...]) -> PackedModule:
    """For pickle and deepcopy, which cannot find the subclass by its name."""
    cls = _subclass(base, names)
    return cls.__new__(cls)
