"""`nf12.Embedding`: nn.Embedding with its table in NF12."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nf12.backend import resolve_backend
from nf12.functional import gather_operands, pack
from nf12.linear import describe
from nf12.packed_module import PackedModule
from nf12.packed_weight import PackedWeight, StaysDense


class Embedding(PackedModule):
    """Rows of a frozen table by id: ids int32 or int64 of any shape -> BF16 [..., embedding_dim].

    Exact, bit for bit. `padding_idx` only steers gradients in nn.Embedding; it is kept as a number.
    """

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None

    def __init__(self, packed: PackedWeight, padding_idx: int | None = None) -> None:
        """`packed` [num_embeddings, embedding_dim] is shared, not copied."""
        super().__init__()
        if packed.num_experts is not None:
            raise ValueError(
                f"nf12.Embedding: weight has shape {list(packed.shape)}, expected [N, K]"
            )
        self.hold("weight", packed)
        self._set_sizes(packed.out_features, packed.in_features, padding_idx)

    def _set_sizes(self, rows: int, columns: int, padding_idx: int | None) -> None:
        self.num_embeddings, self.embedding_dim = rows, columns
        self.padding_idx = padding_idx

    @classmethod
    def from_embedding(
        cls, embedding: nn.Embedding, *, base: int | None = None, cast: bool = False
    ) -> Embedding:
        """Packs the table of `embedding`.

        ValueError if it would not shrink or if the embedding rescales rows in place (max_norm);
        errors of `nf12.pack` else.
        """
        if embedding.max_norm is not None:
            raise ValueError(
                f"nf12.Embedding: max_norm is {embedding.max_norm}, a packed table cannot be "
                "rescaled in place"
            )
        packed = pack(embedding.weight, base=base, cast=cast)
        if isinstance(packed, StaysDense):
            raise ValueError(f"nf12.Embedding: {packed.reason}")
        return cls(packed, embedding.padding_idx).train(embedding.training)

    @classmethod
    def empty(
        cls,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        escapes: int = 0,
        device: torch.device | str | None = None,
    ) -> Embedding:
        """A module without data, for a loader to fill: see nf12.Linear.empty."""
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        module.hold_empty("weight", (num_embeddings, embedding_dim), escapes=escapes, device=device)
        module._set_sizes(num_embeddings, embedding_dim, padding_idx)
        return module

    @classmethod
    def tied_to(cls, owner: PackedModule, padding_idx: int | None = None) -> Embedding:
        """An Embedding of the weight that another module holds."""
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        module.tie("weight", owner)
        operands = module.operands()
        module._set_sizes(operands[3], operands[4], padding_idx)
        return module

    @property
    def weight(self) -> Tensor:
        """A fresh dense copy of the table, BF16: for code that looks at it."""
        return self.unpack_weight()

    def forward(self, ids: Tensor) -> Tensor:
        operands = self.operands()
        return gather_operands(ids, operands, resolve_backend("auto", ids.device))

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f"padding_idx={self.padding_idx}, "
        return f"{self.num_embeddings}, {self.embedding_dim}, {padding}{describe(self)}"
