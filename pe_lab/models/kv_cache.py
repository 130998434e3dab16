"""The key cache: what a model keeps of the tokens it has read, so that decoding reads only the new.

A cache serves one batch from its first token on, without gradients: the tensors it returns are
views of memory that later tokens are written behind.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pe_lab.pe.base import AttentionInputs


@dataclass
class Rows:
    """A tensor that grows along one dimension. Memory is allocated for twice as many rows as there
    are, so that a new one does not copy the others."""

    dim: int
    length: int = 0
    memory: Tensor | None = None

    def extend(self, new: Tensor) -> Tensor:
        """All rows, the new ones last."""
        begin, self.length = self.length, self.length + new.shape[self.dim]
        old = self.memory
        if old is None or old.shape[self.dim] < self.length:
            shape = list(new.shape)
            shape[self.dim] = 2 * self.length
            self.memory = new.new_empty(shape)
            if old is not None:
                self.memory.narrow(self.dim, 0, begin).copy_(old.narrow(self.dim, 0, begin))
        assert self.memory is not None
        self.memory.narrow(self.dim, begin, self.length - begin).copy_(new)
        return self.memory.narrow(self.dim, 0, self.length)


@dataclass
class LayerCache:
    """What one layer keeps of the tokens before: keys before rotation, values, inputs, and what the
    layer below carried."""

    keys: Rows = field(default_factory=lambda: Rows(dim=-2))
    values: Rows = field(default_factory=lambda: Rows(dim=-2))
    inputs: Rows = field(default_factory=lambda: Rows(dim=-2))
    carried: Rows = field(default_factory=lambda: Rows(dim=1))
    rotated: Rows = field(default_factory=lambda: Rows(dim=-2))
    """Rotated keys, where each rotates by its own position alone."""

    @torch.no_grad()
    def extend(self, new: AttentionInputs, pos_BS: Tensor) -> AttentionInputs:
        """The inputs of attention from the new tokens' queries to all tokens so far.

        Args:
            new: of the new tokens alone.
            pos_BS: positions of all tokens.

        Raises:
            ValueError: another batch size, or not as many positions as tokens.
        """
        k, v = self.keys.extend(new.k_BHSD), self.values.extend(new.v_BHSD)
        x, carried = self.inputs.extend(new.x_BSE), new.carried
        if (len(k), k.shape[2]) != (len(new.k_BHSD), pos_BS.shape[1]):
            raise ValueError(
                f"the cache holds {k.shape[2]} tokens of {len(k)} sequences, the new ones among "
                f"them, but there are {pos_BS.shape[1]} positions of {len(new.k_BHSD)}: begin "
                "another sequence with an empty cache"
            )
        if isinstance(carried, Tensor):
            carried = self.carried.extend(carried)
        # dataclasses.replace would take four times as long for each decoded token.
        return AttentionInputs(x, new.q_BHTD, k, v, new.pos_q_BT, pos_BS, carried, new.window)

    @torch.no_grad()
    def extend_rotated(self, k: Tensor) -> Tensor:
        """All rotated keys, of those that each rotate by their own position alone."""
        return self.rotated.extend(k)


@dataclass
class Cache:
    """What a decoder keeps: of each layer, and the tokens read."""

    layers: list[LayerCache]
    tokens_BS: Rows = field(default_factory=lambda: Rows(dim=1))

    def extend(self, tokens_BT: Tensor) -> Tensor:
        return self.tokens_BS.extend(tokens_BT)
