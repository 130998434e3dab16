"""What a model remembers of the tokens it has read, so that decoding gives it only the new ones.

A cache serves one batch from its first token on, and no gradient: what it gives are views of
memory that it goes on writing behind.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Rows:
    """The rows of the tokens so far along one dimension. Memory is taken for twice as many as
    there are, so that a new one costs no copy of the others."""

    dim: int
    length: int = 0
    kept: Tensor | None = None

    def extend(self, new: Tensor) -> Tensor:
        """All rows, the new ones last."""
        begin, self.length = self.length, self.length + new.shape[self.dim]
        old = self.kept
        if old is None or old.shape[self.dim] < self.length:
            shape = list(new.shape)
            shape[self.dim] = 2 * self.length
            self.kept = new.new_empty(shape)
            if old is not None:
                self.kept.narrow(self.dim, 0, begin).copy_(old.narrow(self.dim, 0, begin))
        assert self.kept is not None
        self.kept.narrow(self.dim, begin, self.length - begin).copy_(new)
        return self.kept.narrow(self.dim, 0, self.length)


@dataclass
class LayerCache:
    """What one layer remembers of the tokens before: keys not yet rotated, values, inputs, and
    turned keys where each turns by its own position alone."""

    parts: tuple[Rows, Rows, Rows] = field(
        default_factory=lambda: (Rows(dim=-2), Rows(dim=-2), Rows(dim=-2))
    )
    carried: Rows = field(default_factory=lambda: Rows(dim=1))
    turned: Rows = field(default_factory=lambda: Rows(dim=-2))

    @torch.no_grad()
    def extend(self, k: Tensor, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values, inputs = self.parts
        return keys.extend(k), values.extend(v), inputs.extend(x)

    @torch.no_grad()
    def extend_turned(self, k: Tensor) -> Tensor:
        """All turned keys: those before have the positions that they were given with."""
        return self.turned.extend(k)

    @torch.no_grad()
    def extend_carried(self, carried: Any) -> Any:
        """Tensors carried from the layer below are kept per token, along dimension 1."""
        return self.carried.extend(carried) if isinstance(carried, Tensor) else carried


@dataclass
class Cache:
    """Everything read so far: decoding gives the model only the new tokens."""

    layers: list[LayerCache]
    tokens_BS: Rows = field(default_factory=lambda: Rows(dim=1))

    def extend(self, tokens_BT: Tensor) -> Tensor:
        return self.tokens_BS.extend(tokens_BT)
