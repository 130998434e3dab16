"""The trunk of decoder-only models: token embeddings, layers that attend, the output layer.

Shape letters: B batch, T tokens given (queries), S tokens known (keys), E model width,
V vocabulary, N scored places.

Initialisation: linear weights uniform in +-1/sqrt(fan in), biases zero; the projections that
write into the residual stream are divided by the square root of how many there are (GPT-2);
token embeddings normal with deviation 1, or, tied to the output, deviation 1/sqrt(E) and
multiplied by sqrt(E) at the input (Vaswani 2017).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from pe_lab.common.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu.add_norm import fused_norm
from pe_lab.kernels.dropout import dropout
from pe_lab.models.attention import Attention
from pe_lab.models.base import Model, ModelConfig, refuse_whole
from pe_lab.models.kv_cache import Cache, LayerCache
from pe_lab.models.scored_positions import ScoredPositions
from pe_lab.pe.base import PositionalEncoding


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """The keys that all of them have."""

    dropout: Annotated[float, Field(ge=0, lt=1)]
    norm: Literal["layernorm", "rmsnorm"]
    norm_position: Literal["pre", "post"]
    tied_embeddings: bool
    window: PositiveInt | None = None

    def new_norm(self) -> nn.Module:
        return (nn.RMSNorm if self.norm == "rmsnorm" else nn.LayerNorm)(self.d_model)


class Layer(nn.Module, ABC):
    """One layer, around an attention that asks the layer's encoding."""

    attention: Attention

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        pos_BS: Tensor,
        queries: int,
        carried: Any,
        cache: LayerCache | None,
        drop: Drop | None = None,
        scored: ScoredPositions | None = None,
    ) -> tuple[Tensor, Any]:
        """Hidden states (B, T, E), or of the scored places (N, E); and what the next layer's
        encoding finds in ``AttentionInputs.carried``."""

    @abstractmethod
    def initialise(self, n_layers: int) -> None:
        """Draw the initial weights from torch's generator."""


def draw(linear: nn.Linear) -> None:
    """The initial weights of a linear map."""
    bound = linear.in_features**-0.5
    linear.weight.uniform_(-bound, bound)
    linear.bias.zero_()


class Decoder(Model):
    """Tokens are embedded, go through the layers one after another, each asking one encoding, and
    are normalised. The first encoding's ``embed`` is called on the token embeddings.

    Args:
        layers: made as they are asked for, after the embeddings.
    """

    def __init__(
        self, cfg: DecoderConfig, vocab_size: int, layers: Iterable[Layer], fast: bool
    ) -> None:
        super().__init__()
        self.fast, self.tied, self.p = fast, cfg.tied_embeddings, cfg.dropout
        self.tokens = nn.Embedding(vocab_size, cfg.d_model)
        self.blocks = nn.ModuleList(layers)
        self.norm = cfg.new_norm() if cfg.norm_position == "pre" else nn.Identity()
        self.head = nn.Linear(cfg.d_model, vocab_size, bias=False)
        self._initialise()
        if self.tied:
            self.head.weight = self.tokens.weight

    @torch.no_grad()
    def _initialise(self) -> None:
        self.tokens.weight.normal_(0, self.tokens.embedding_dim**-0.5 if self.tied else 1)
        bound = self.head.in_features**-0.5
        self.head.weight.uniform_(-bound, bound)
        for layer in self.layers:
            layer.initialise(len(self.blocks))

    @property
    def layers(self) -> list[Layer]:
        return list(self.blocks)  # type: ignore[arg-type]

    @property
    def encodings(self) -> list[PositionalEncoding]:
        return [layer.attention.encoding for layer in self.layers]

    def empty_cache(self) -> Cache:
        refuse_whole(self.encodings)
        return Cache([layer.attention.empty_cache() for layer in self.layers])

    @torch.no_grad()
    def kernels(self) -> dict[str, str] | None:
        """The kernel that serves each kind of attention that the encodings ask for (see
        kernels/dispatch.py; none for those that have none); None where the model is not fast."""
        if not self.fast:
            return None
        device, training = self.head.weight.device, self.training
        tokens = torch.zeros(1, 1, dtype=torch.int64, device=device)
        self.eval()
        with dispatch.requested_kinds() as kinds:
            self(tokens, tokens)
        self.train(training)
        return dispatch.backend_names(device, kinds)

    def forward(
        self,
        tokens_BT: Tensor,
        pos_BS: Tensor,
        cache: Cache | None = None,
        *,
        scored: ScoredPositions | None = None,
        key: int | Tensor | None = None,
    ) -> Tensor:
        """(B, T) tokens and the positions of all S tokens so far to hidden states (B, T, E).

        Args:
            scored: return only these places' states, (N, E); without a cache.
            key: of the dropout masks (see dropout.py); None: drawn from torch's generator.
        """
        t, tokens_BS = tokens_BT.shape[1], tokens_BT
        # An encoding of the input may look at the tokens before, so it sees them all.
        if cache is not None and "embed" in self.encodings[0].hooks():
            tokens_BS = cache.extend(tokens_BT)
        drop = self.drop(key)
        x = self.tokens(tokens_BS)
        if self.tied:
            x = x * math.sqrt(x.shape[-1])
        x = self.encodings[0].embed(x, tokens_BS, pos_BS)[:, -t:]
        if drop is not None:
            x = dropout(x, drop, fast=self.fast)
        carried, last = None, len(self.blocks) - 1
        for i, layer in enumerate(self.blocks):
            given = cache and cache.layers[i], drop and drop.at(4 * (i + 1))
            if i == last and scored is not None and self.fast:
                whole = self.encodings[i].whole_sequence is not None
                queries = t if whole else t - scored.first
                x, carried = layer(x, pos_BS, queries, carried, *given, scored)
                scored = None
            else:
                x, carried = layer(x, pos_BS, t, carried, *given)
        if scored is not None:
            x = x.flatten(0, 1).index_select(0, scored.at_N)
        if not isinstance(self.norm, nn.Identity):
            _, x = fused_norm(x, self.norm, fast=self.fast)
        hidden: Tensor = x
        return hidden

    def unembed(self, hidden: Tensor) -> Tensor:
        """(.., E) hidden states to (.., V) logits."""
        logits: Tensor = self.head(hidden)
        return logits
