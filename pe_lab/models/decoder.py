"""Decoder-only models: token embeddings, layers of attention, and a linear map to the logits.

Shape letters: B batch, T new tokens (queries), S tokens so far (keys), E model width,
V vocabulary, N scored tokens.

Initialisation: linear weights uniform in +-1/sqrt(fan in), biases zero; the projections that
write into the residual stream are divided by the square root of how many there are (GPT-2);
token embeddings normal with standard deviation 1, or, tied to the output, 1/sqrt(E) and
multiplied by sqrt(E) at the input (Vaswani 2017).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from pe_lab.core.dropout import Drop, dropout
from pe_lab.models.attention import Attention
from pe_lab.models.base import Model, ModelConfig, refuse_whole_sequence
from pe_lab.models.kv_cache import Cache, LayerCache
from pe_lab.models.scored_positions import ScoredPositions
from pe_lab.pe.base import PositionalEncoding


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """The keys that all decoders have.

    ``logn: learned`` multiplies the logits, with what an encoding adds to them, by s_h log n: n
    is the number of keys that the query sees, s_h a parameter of each head and layer. Source:
    scalable softmax, Nakanishi 2025 (2501.19399).
    """

    dropout: Annotated[float, Field(ge=0, lt=1)]
    norm: Literal["layernorm", "rmsnorm"]
    norm_position: Literal["pre", "post"]
    tied_embeddings: bool
    window: PositiveInt | None = None
    logn: Literal["learned"] | None = None

    def refuses_scaling(self, encoding: PositionalEncoding) -> str | None:
        """Why the logits of an encoding cannot be scaled by ``logn``, as ``refuses`` says it."""
        if self.logn is None:
            return None
        if "normalize" in encoding.hooks():
            return (
                "replaces softmax, whose logits model.logn=learned scales: set model.logn=null, or "
                "choose one that leaves softmax ({fitting})"
            )
        if encoding.needs_softmax is not None and "logn=" in encoding.needs_softmax:
            key = encoding.needs_softmax
            return (
                f"with {key} scales logits by log n, as model.logn=learned does: set "
                f"pe.{key.partition('=')[0]}=none or model.logn=null"
            )
        return None

    def new_norm(self) -> nn.Module:
        return (nn.RMSNorm if self.norm == "rmsnorm" else nn.LayerNorm)(self.d_model)


class Layer(nn.Module, ABC):
    """One layer of a decoder."""

    attention: Attention

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        pos_BS: Tensor,
        carried: Any = None,
        cache: LayerCache | None = None,
        drop: Drop | None = None,
    ) -> tuple[Tensor, Any]:
        """Hidden states (B, T, E), and the state that the encoding passes to the next layer
        (``AttentionInputs.carried``)."""

    @abstractmethod
    def initialise(self, n_layers: int) -> None:
        """Draw the initial weights from torch's generator."""


def draw(linear: nn.Linear, biases: bool = False) -> None:
    """Draw the initial weights of a linear map; its biases too, or zero."""
    bound = linear.in_features**-0.5
    linear.weight.uniform_(-bound, bound)
    if biases:
        linear.bias.uniform_(-bound, bound)
    else:
        linear.bias.zero_()


class Decoder(Model):
    """Token embeddings, layers, and a final norm if the layers normalise their input.

    Args:
        layers: constructed as they are iterated, after the token embeddings.
    """

    def __init__(self, cfg: DecoderConfig, vocab_size: int, layers: Iterable[Layer]) -> None:
        super().__init__()
        self.tied, self.p = cfg.tied_embeddings, cfg.dropout
        self.tokens = nn.Embedding(vocab_size, cfg.d_model)
        self.blocks = nn.ModuleList(layers)
        self.norm = cfg.new_norm() if cfg.norm_position == "pre" else nn.Identity()
        self.head = nn.Linear(cfg.d_model, vocab_size, bias=False)
        self.initialise_embeddings()
        with torch.no_grad():
            for layer in self.layers:
                layer.initialise(len(self.blocks))

    @property
    def layers(self) -> list[Layer]:
        return list(self.blocks)  # type: ignore[arg-type]

    @property
    def encodings(self) -> list[PositionalEncoding]:
        return [layer.attention.encoding for layer in self.layers]

    def empty_cache(self) -> Cache:
        refuse_whole_sequence(self.encodings)
        return Cache([layer.attention.empty_cache() for layer in self.layers])

    def forward(
        self,
        tokens_BT: Tensor,
        pos_BS: Tensor,
        cache: Cache | None = None,
        *,
        scored: ScoredPositions | None = None,
        key: int | None = None,
    ) -> Tensor:
        drop, carried = self.drop(key), None
        x = dropout(self.embed(tokens_BT, pos_BS, cache), drop)
        for i, layer in enumerate(self.blocks):
            layer_cache, layer_drop = cache and cache.layers[i], drop and drop.at(4 * (i + 1))
            x, carried = layer(x, pos_BS, carried, layer_cache, layer_drop)
        hidden: Tensor = self.norm(x if scored is None else scored.pick(x))
        return hidden
