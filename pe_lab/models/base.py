"""The base class of models: tokens to hidden states, hidden states to logits.

Shape letters: B batch, T new tokens, S tokens including the cached ones, E width of the hidden
states, N scored tokens, V vocabulary.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pe_lab.models.conv import CausalConv
from pe_lab.models.kv_cache import LayerCache, TokenCache
from pe_lab.pe.base import PositionalEncoding


class Mixer(nn.Module, ABC):
    """What mixes tokens in a layer: attention, a recurrence or a convolution."""

    out: Any
    """Its last linear map, which writes into the residual stream."""
    encoding: PositionalEncoding
    """NoPE, where there is no attention."""
    cache: type[LayerCache] = LayerCache

    @abstractmethod
    def forward(
        self, x_BTE: Tensor, pos_BS: Tensor, carried: Any = None, cache: LayerCache | None = None
    ) -> tuple[Tensor, Any]:
        """The T tokens mixed with those before them, (B, T, E).

        Args:
            x_BTE: the input of the layer, normalised where the model does so.
            pos_BS: positions of all S tokens.
            carried: the ``layer_state`` of the encoding of the layer below.
            cache: holds what is kept of the S - T previous tokens, and is updated.

        Returns:
            The output, and ``carried`` of the next layer.
        """

    def initial_linears(self) -> tuple[list[nn.Linear], list[nn.Linear]]:
        """The linear maps that a block draws, before those of its feed-forward and after them;
        others keep the weights that they were built with."""
        return [], []


class Model(nn.Module, ABC):
    """Tokens to hidden states (``forward``), hidden states to logits (``unembed``).

    Adding a model takes one file with a subclass of this and of ``config.ModelConfig``, and one
    yaml in conf/model/.
    """

    tokens: nn.Embedding
    head: nn.Linear
    tied: bool = False
    """Whether ``head`` has the weights of ``tokens``."""
    conv: CausalConv | None
    """The convolution of the token embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = None

    @property
    @abstractmethod
    def encodings(self) -> list[PositionalEncoding]:
        """One encoding for each layer that has one; layers may share an instance."""

    @abstractmethod
    def forward(
        self,
        tokens_BT: Tensor,
        pos_BS: Tensor,
        cache: Any = None,
        *,
        scored: Tensor | None = None,
    ) -> Tensor:
        """(B, T) tokens and the positions of all S tokens so far to hidden states (B, T, E).

        Args:
            cache: from ``empty_cache``; holds the S - T previous tokens.
            scored: return only the states of these tokens, (N, E): the indices b T + t, (N,).
        """

    @abstractmethod
    def empty_cache(self) -> Any:
        """The cache to start decoding with.

        Raises:
            ValueError: an encoding needs the whole sequence at once.
        """

    def unembed(self, hidden: Tensor) -> Tensor:
        """(.., E) hidden states to (.., V) logits."""
        return self.head(hidden)

    def embed(self, tokens_BT: Tensor, pos_BS: Tensor, cache: TokenCache | None) -> Tensor:
        """Token embeddings (B, T, E) after ``conv`` and ``embed`` of the first layer's encoding,
        which may read the previous tokens."""
        tokens_BS = tokens_BT
        if cache is not None and (self.conv is not None or "embed" in self.encodings[0].hooks()):
            tokens_BS = cache.tokens_BS.extend(tokens_BT)
        x_BSE = self.tokens(tokens_BS)
        if self.tied:
            x_BSE = x_BSE * math.sqrt(x_BSE.shape[-1])
        if self.conv is not None:
            x_BSE = self.conv(x_BSE)
        return self.encodings[0].embed(x_BSE, tokens_BS, pos_BS)[:, -tokens_BT.shape[1] :]

    @torch.no_grad()
    def initialise_embeddings(self) -> None:
        """Draw the initial weights of ``tokens`` and ``head`` from torch's generator, and tie
        them."""
        self.tokens.weight.normal_(0, self.tokens.embedding_dim**-0.5 if self.tied else 1)
        bound = self.head.in_features**-0.5
        self.head.weight.uniform_(-bound, bound)
        if self.tied:
            self.head.weight = self.tokens.weight

    def autocast(self, precision: str) -> torch.autocast:
        """The context of ``train.precision`` on the model's device."""
        half = precision == "bfloat16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


def pick_scored(states_BTE: Tensor, scored: Tensor | None) -> Tensor:
    """The states of the scored tokens, (N, E); None: all of them, as they are."""
    return states_BTE if scored is None else states_BTE.flatten(0, 1).index_select(0, scored)


def refuse_whole_sequence(encodings: Sequence[PositionalEncoding]) -> None:
    """ValueError if one of them cannot be used with a key cache."""
    if any(encoding.whole_sequence for encoding in encodings):
        raise ValueError(
            "a key cache cannot be used with an encoding that depends on the sequence's length"
        )
