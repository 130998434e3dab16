"""The key-value cache: what a model keeps of previous tokens, so that decoding only reads new ones.

A cache belongs to one batch, from its first token on. It has no gradients: the tensors it returns
are views of memory to which later tokens are appended.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pe_lab.pe.base import AttentionInputs


@dataclass
class GrowingTensor:
    """A tensor that grows along one dimension. Memory is allocated for twice as many rows as
    needed, so that appending a row rarely copies the others."""

    dim: int
    length: int = 0
    memory: Tensor | None = None

    @torch.no_grad()
    def extend(self, new: Tensor) -> Tensor:
        """All rows, the new ones last."""
        begin, self.length = self.length, self.length + new.shape[self.dim]
        old = self.memory
        if old is not None and len(old) != len(new):
            raise ValueError(
                f"the cache holds {len(old)} sequences, not {len(new)}: begin another sequence "
                "with an empty cache"
            )
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
    """What one layer keeps of the previous tokens: keys before rotation, values, inputs, and the
    encoding's state of the layer below."""

    keys: GrowingTensor = field(default_factory=lambda: GrowingTensor(dim=-2))
    values: GrowingTensor = field(default_factory=lambda: GrowingTensor(dim=-2))
    inputs: GrowingTensor = field(default_factory=lambda: GrowingTensor(dim=-2))
    carried: GrowingTensor = field(default_factory=lambda: GrowingTensor(dim=1))
    recent: Tensor | None = None
    """The inputs of the last tokens that a convolution reads."""

    def with_recent(self, x_BTE: Tensor, reach: int) -> Tensor:
        """The inputs of new tokens after those of the ``reach`` tokens before them, or fewer at the
        start."""
        latest = x_BTE if self.recent is None else torch.cat((self.recent, x_BTE), 1)
        self.recent = latest[:, -reach:].detach()
        return latest

    def extend(self, new: AttentionInputs, pos_BS: Tensor) -> AttentionInputs:
        """The attention inputs of the new queries and of all keys so far.

        Args:
            new: the attention inputs of the new tokens alone.
            pos_BS: positions of all tokens.

        Raises:
            ValueError: the batch size differs, or the numbers of positions and tokens do.
        """
        k, v = self.keys.extend(new.k_BHSD), self.values.extend(new.v_BHSD)
        x, carried = self.inputs.extend(new.x_BSE), new.carried
        if (len(k), k.shape[2]) != (len(new.k_BHSD), pos_BS.shape[1]):
            raise ValueError(
                f"the cache holds {k.shape[2]} tokens of {len(k)} sequences, including the "
                f"new ones, but there are {pos_BS.shape[1]} positions of {len(new.k_BHSD)}: "
                "begin another sequence with an empty cache"
            )
        if isinstance(carried, Tensor):
            carried = self.carried.extend(carried)
        # dataclasses.replace would take four times as long per decoded token.
        return AttentionInputs(x, new.q_BHTD, k, v, new.pos_q_BT, pos_BS, carried, new.window)


@dataclass
class TokenCache:
    """The tokens so far, if the encoding reads them at the input."""

    tokens_BS: GrowingTensor = field(default_factory=lambda: GrowingTensor(dim=1), kw_only=True)


@dataclass
class Cache(TokenCache):
    """The cache of a decoder, with one of each layer."""

    layers: list[LayerCache]
