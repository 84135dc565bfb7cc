"""`PackedModule`: how a module holds packed weights as buffers.

The weight called `weight` lives in four buffers, weight_payload, weight_index, weight_escapes and
weight_meta: the tensor names of a checkpoint, so that plain state-dict loading works. Its integers
are kept beside them, since reading meta in forward would stop a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nf12.backend import resolve_backend
from nf12.functional import unpack_operands
from nf12.packed_weight import SUFFIXES, PackedWeight
from nf12.packing import TILE_BYTES, Operands, tile_columns, tile_rows

NOT_LOADED = -1


class PackedModule(nn.Module):
    """Mixin of modules that hold packed weights. A subclass calls `hold` for each weight."""

    # By name of the weight: (out_features, in_features, base), base NOT_LOADED until there is data.
    _packed_sizes: dict[str, tuple[int, int, int]]
    # Tied weights: the module that owns the buffers and the weight's name there. In a tuple, so
    # that nn.Module does not take the owner for a child.
    _packed_owner: dict[str, tuple[PackedModule, str]]

    def hold(self, name: str, packed: PackedWeight) -> None:
        """Registers the buffers of weight `name`."""
        self._packed_state()
        for buffer, tensor in packed.tensors(name).items():
            self.register_buffer(buffer, tensor)
        self._packed_sizes[name] = packed.operands[3:]

    def hold_empty(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        escapes: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        """Registers uninitialised buffers of a weight of `shape` with a side table of `escapes`
        entries, for a loader to fill."""
        *experts, n, k = shape
        tiles = (*experts, tile_rows(n), tile_columns(k))
        self._packed_state()
        for suffix, size, dtype in zip(
            SUFFIXES,
            ((*tiles, TILE_BYTES), tiles, (escapes,), (4,)),
            (torch.uint8, torch.int32, torch.int32, torch.int32),
            strict=True,
        ):
            self.register_buffer(name + suffix, torch.empty(size, dtype=dtype, device=device))
        self._packed_sizes[name] = (n, k, NOT_LOADED)

    def tie(self, name: str, owner: PackedModule, owner_name: str = "weight") -> None:
        """Makes weight `name` the one that `owner` holds. Moves, copies and loads of the model keep
        them one; state dicts hold it once, under the owner's name."""
        self._packed_state()
        if name in self.packed_names():
            self.release(name)
        self._packed_owner[name] = owner.owner_of(owner_name)

    def packed_names(self) -> list[str]:
        """Names of the packed weights, tied ones included."""
        return [*self._packed_sizes, *self._packed_owner]

    def owner_of(self, name: str) -> tuple[PackedModule, str]:
        """The module that holds weight `name`, and its name there: (self, name) unless tied."""
        return self._packed_owner.get(name, (self, name))

    def release(self, name: str) -> None:
        """Forgets weight `name` and its buffers."""
        if self._packed_owner.pop(name, None) is None:
            del self._packed_sizes[name]
            for suffix in SUFFIXES:
                del self._buffers[name + suffix]

    def _packed_state(self) -> None:
        if "_packed_sizes" not in self.__dict__:
            self._packed_sizes = {}
            self._packed_owner = {}

    def operands(self, name: str = "weight") -> Operands:
        """The operators' leading arguments for weight `name`. RuntimeError before it is loaded."""
        sizes = self._packed_sizes.get(name)
        if sizes is None:
            owner, owner_name = self._packed_owner[name]
            return owner.operands(owner_name)
        n, k, base = sizes
        if base == NOT_LOADED:
            raise RuntimeError(f"nf12: {type(self).__name__}.{name} has not been loaded")
        buffers = self._buffers
        payload, index, escapes = (
            buffers[name + "_payload"], buffers[name + "_index"], buffers[name + "_escapes"],
        )  # fmt: skip
        assert payload is not None and index is not None and escapes is not None
        return payload, index, escapes, n, k, base

    def packed(self, name: str = "weight") -> PackedWeight:
        """Weight `name` as a PackedWeight that shares the buffers."""
        return PackedWeight.trusted(*self.operands(name))

    def unpack_weight(self, name: str = "weight") -> Tensor:
        """Weight `name` as a fresh, exact BF16 tensor."""
        operands = self.operands(name)
        return unpack_operands(operands, resolve_backend("auto", operands[0].device))

    def refresh_packed(self) -> None:
        """Checks the buffers and reads their integers, after a loader has set them one by one.

        FormatError if they are no valid packed weight, ValueError if it has another shape.
        """
        for name in self._packed_sizes:
            packed = PackedWeight.from_tensors(dict(self.named_buffers(recurse=False)), name)
            n, k, _ = self._packed_sizes[name]
            if (n, k) != packed.operands[3:5]:
                raise ValueError(
                    f"nf12: {name} is {packed.out_features} x {packed.in_features}, the module's "
                    f"is {n} x {k}"
                )
            self._packed_sizes[name] = packed.operands[3:]

    # ---- nn.Module's own hooks into loading and moving

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Checks each packed weight and makes room for its side table before torch copies it."""
        assign = local_metadata.get("assign_to_params_buffers", False)
        loaded = {}
        for name in self._packed_sizes:
            key = prefix + name
            if not any(key + suffix in state_dict for suffix in SUFFIXES):
                continue  # torch reports the missing keys
            packed = PackedWeight.from_tensors(state_dict, key)
            problem = self._cannot_hold(name, packed, assign)
            if problem:
                error_msgs.append(f"{key}: {problem}")
                return
            buffer = self._buffers[name + "_escapes"]
            assert buffer is not None
            self._buffers[name + "_escapes"] = buffer.new_empty(packed.escapes.shape)
            loaded[name] = packed.operands[3:]
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        self._packed_sizes.update(loaded)

    def _cannot_hold(self, name: str, packed: PackedWeight, assign: bool) -> str | None:
        payload = self._buffers[name + "_payload"]
        assert payload is not None
        own = (*payload.shape[:-3], *self._packed_sizes[name][:2])
        if own != tuple(packed.shape):
            return f"size mismatch: {list(packed.shape)} in the state dict, {list(own)} here"
        if not assign and payload.device.type == "meta":
            return "the module is on the meta device: load with assign=True"
        return None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Moves packed weights, but never converts them: .half(), .float() and .type() pass by."""
        kept = {id(tensor) for tensor in self._tensors_of_fixed_dtype()}

        def moved(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            if id(tensor) in kept and result.dtype != tensor.dtype:
                return tensor.to(result.device)
            return result

        return super()._apply(moved, recurse)  # type: ignore[no-untyped-call]

    def _tensors_of_fixed_dtype(self) -> list[Tensor]:
        names = [name + suffix for name in self._packed_sizes for suffix in SUFFIXES]
        return [buffer for name in names if (buffer := self._buffers[name]) is not None]
