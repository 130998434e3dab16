"""What a model remembers of the tokens it has read, so that decoding gives it only the new ones."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class LayerCache:
    """What one layer remembers of the tokens before: keys not yet rotated, values, inputs."""

    parts: tuple[Tensor, Tensor, Tensor] | None = None
    carried: Any = None

    def extend(self, k: Tensor, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        new = (k, v, x)
        if self.parts is not None:
            k, v, x = (torch.cat([old, add], -2) for old, add in zip(self.parts, new, strict=True))
        self.parts = (k, v, x)
        return k, v, x

    def extend_carried(self, carried: Any) -> Any:
        """Tensors carried from the layer below are kept per token, along dimension 1."""
        if isinstance(carried, Tensor):
            carried = carried if self.carried is None else torch.cat([self.carried, carried], 1)
            self.carried = carried
        return carried


@dataclass
class Cache:
    """Everything read so far: decoding gives the model only the new tokens."""

    layers: list[LayerCache]
    tokens_BS: Tensor | None = None

    def extend(self, tokens_BT: Tensor) -> Tensor:
        old = self.tokens_BS
        self.tokens_BS = tokens_BT if old is None else torch.cat([old, tokens_BT], 1)
        return self.tokens_BS
