"""Decoder-only models: token embeddings, layers of attention, and a linear map to the logits.

Shape letters: B batch, T new tokens (queries), S tokens so far (keys), E model width, N scored
tokens.

Initialisation: linear weights uniform in +-1/sqrt(fan in), biases zero; the projections that
write into the residual stream are divided by the square root of how many there are (GPT-2);
token embeddings normal with standard deviation 1, or, tied to the output, 1/sqrt(E) and
multiplied by sqrt(E) at the input (Vaswani 2017).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.core.dropout import Drop
from pe_lab.models.attention import Attention, MultiHeadAttention, last_positions
from pe_lab.models.base import (
    DecoderConfig,
    Model,
    ScoredPositions,
    TransformerSizes,
    Vocabulary,
    add_dropout,
    dropout,
    refuse_whole_sequence,
)
from pe_lab.models.kv_cache import Cache, LayerCache
from pe_lab.pe.base import PositionalEncoding


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(TransformerSizes):
    """Decoder-only transformer: in every layer multi-head attention, then a feed-forward.

    ``sink`` adds exp of a learned logit of each head to the denominator of softmax, so that a query
    may attend to nothing: gpt-oss (2508.10925) and DeepSeek-V4; it starts at 0. ``output_gate``
    multiplies the averaged values by sigmoid(W x), x the input of attention, before the output
    projection: Qiu 2025 (2505.06708). ``qk_norm`` normalises each head's queries and keys by
    RMSNorm before any rotation: Henry 2020 (2010.04245), in the form of Qwen3 and Gemma 3.
    ``normalizer`` replaces softmax by 1.5-entmax, whose weights can be exactly 0; ``asentmax``
    first multiplies the logits by a factor that grows with the keys seen (``AdaptiveScale``).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalizer is not None and self.sink:
            raise ValueError(
                f"sink=true adds to the denominator of softmax, and normalizer={self.normalizer} "
                "has none: set sink=false or normalizer=null"
            )
        if self.normalizer == "asentmax" and self.logn is not None:
            raise ValueError(
                f"logn={self.logn} scales logits with the length, and so does "
                "normalizer=asentmax: set logn=null, or normalizer=entmax"
            )

    def refuses(self, encoding: PositionalEncoding) -> str | None:
        if self.normalizer is not None and "normalize" in encoding.hooks():
            return (
                f"replaces softmax, and so does model.normalizer={self.normalizer}: set "
                "model.normalizer=null, or choose one that leaves softmax ({fitting})"
            )
        if self.normalizer == "asentmax" and encoding.scales_logits is not None:
            on, off = encoding.scales_logits
            return (
                f"with {on} scales logits with the length, as model.normalizer=asentmax does: set "
                f"pe.{off} or model.normalizer=entmax"
            )
        if self.sink and "normalize" in encoding.hooks():
            return (
                "replaces softmax, whose denominator model.sink=true adds to: set "
                "model.sink=false, or choose one that leaves softmax ({fitting})"
            )
        return self.refuses_scaling(encoding)

    def build(
        self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding]
    ) -> "Transformer":
        return Transformer(self, vocabulary.size, encodings)


class FeedForward(nn.Module):
    """linear, activation, linear; SwiGLU (Shazeer 2020) multiplies two linears."""

    def __init__(self, cfg: TransformerSizes) -> None:
        super().__init__()
        self.activation, self.drops_hidden = cfg.activation, cfg.hidden_dropout
        self.up = nn.Linear(cfg.d_model, (2 if cfg.activation == "swiglu" else 1) * cfg.ff_width)
        self.out = nn.Linear(cfg.ff_width, cfg.d_model)

    def forward(self, h: Tensor, drop: Drop | None = None, rows: Tensor | None = None) -> Tensor:
        """
        Args:
            drop, rows: dropout of the hidden units, if they are dropped, as in ``Drop``.
        """
        hidden = self.hidden(h)
        if drop is not None and self.drops_hidden:
            hidden = drop(hidden, rows)
        return self.out(hidden)

    def hidden(self, h: Tensor) -> Tensor:
        """The hidden layer after its activation."""
        up: Tensor = self.up(h)
        if self.activation == "swiglu":
            gate, value = up.chunk(2, -1)
            return F.silu(gate) * value
        return F.relu(up) if self.activation == "relu" else F.gelu(up)


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
        scored: ScoredPositions | None = None,
    ) -> tuple[Tensor, Any]:
        """Hidden states (B, T, E), and the state that the encoding passes to the next layer
        (``AttentionInputs.carried``). With ``scored``, as in the last layer, the states of these
        tokens alone, (N, E)."""

    @abstractmethod
    def initialise(self, n_layers: int) -> None:
        """Draw the initial weights from torch's generator."""


class Block(Layer):
    """Attention and feed-forward, each in a residual branch, normalised before or after."""

    attention: MultiHeadAttention

    def __init__(self, cfg: TransformerSizes, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.pre, self.scaled = cfg.norm_position == "pre", cfg.init == "scaled"
        self.attention, self.ff = attention, FeedForward(cfg)
        self.norm_attention, self.norm_ff = cfg.new_norm(), cfg.new_norm()

    def forward(
        self,
        x: Tensor,
        pos_BS: Tensor,
        carried: Any = None,
        cache: LayerCache | None = None,
        drop: Drop | None = None,
        scored: ScoredPositions | None = None,
    ) -> tuple[Tensor, Any]:
        encoding, rows = self.attention.encoding, None
        drops = [drop and drop.at(place) for place in (1, 2, 3)]
        x = encoding.block_input(x, last_positions(pos_BS, x.shape[1]))
        h = self.norm_attention(x) if self.pre else x
        a, carried = self.attention(h, pos_BS, carried, cache, drops[0], scored=scored)
        if scored is not None:
            x, rows = scored.pick(x), scored.at_N
        x = add_dropout(x, a, drops[1], rows)
        if self.pre:
            h = self.norm_ff(x)
            x = add_dropout(x, self.ff(h, drop, rows), drops[2], rows)
        else:
            h = self.norm_attention(x)
            x = self.norm_ff(add_dropout(h, self.ff(h, drop, rows), drops[2], rows))
        return x, carried if scored is not None else encoding.update_state(carried, h)

    def initialise(self, n_layers: int) -> None:
        for linear in (self.attention.qkv, self.attention.out, self.ff.up, self.ff.out):
            draw(linear, biases=not self.scaled)
        if self.attention.gate is not None:
            draw(self.attention.gate)
        if (scale := self.attention.scale) is not None:
            draw(scale.beta)
            draw(scale.gamma)
        if self.scaled:
            for linear in (self.attention.out, self.ff.out):
                linear.weight.div_(math.sqrt(2 * n_layers))


def draw(linear: nn.Linear, biases: bool = False) -> None:
    """Draw the initial weights of a linear map; its biases too, or zero."""
    bound = linear.in_features**-0.5
    linear.weight.uniform_(-bound, bound)
    if biases:
        linear.bias.uniform_(-bound, bound)
    elif linear.bias is not None:
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
        self.conv = cfg.new_conv("embedding", cfg.d_model)
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
        drop, carried, last = self.drop(key), None, len(self.blocks) - 1
        x = dropout(self.embed(tokens_BT, pos_BS, cache), drop)
        for i, layer in enumerate(self.blocks):
            layer_cache, layer_drop = cache and cache.layers[i], drop and drop.at(4 * (i + 1))
            # The last layer computes the scored tokens only.
            chosen = scored if i == last else None
            x, carried = layer(x, pos_BS, carried, layer_cache, layer_drop, chosen)
        return self.norm(x)


class Transformer(Decoder):
    """``encodings`` has one encoding for each layer; layers may share an instance."""

    def __init__(
        self,
        cfg: TransformerSizes,
        vocab_size: int,
        encodings: Sequence[PositionalEncoding],
        attention: type[MultiHeadAttention] = MultiHeadAttention,
    ) -> None:
        def block(number: int, encoding: PositionalEncoding) -> Block:
            layer = cfg.at_layer(number)
            return Block(layer, attention(layer, encoding))

        super().__init__(cfg, vocab_size, (block(*pair) for pair in enumerate(encodings)))
