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

from pe_lab.models.attention import MultiHeadAttention, ProjectedAttention, last_positions
from pe_lab.models.base import Model, pick, refuse_whole_sequence
from pe_lab.models.config import DecoderConfig, TransformerSizes, Vocabulary
from pe_lab.models.kv_cache import Cache, LayerCache
from pe_lab.models.normalizers import ASEntmax
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
    first multiplies the logits by a factor that grows with the keys seen.
    """

    def build(
        self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding]
    ) -> "Transformer":
        return Transformer(self, vocabulary.size, encodings)


class FeedForward(nn.Module):
    """linear, activation, linear; SwiGLU (Shazeer 2020) multiplies two linears."""

    def __init__(self, cfg: TransformerSizes) -> None:
        super().__init__()
        self.activation = cfg.activation
        self.up = nn.Linear(cfg.d_model, (2 if cfg.activation == "swiglu" else 1) * cfg.ff_width)
        self.out = nn.Linear(cfg.ff_width, cfg.d_model)
        self.drop = nn.Dropout(cfg.dropout if cfg.hidden_dropout else 0)

    def forward(self, h: Tensor) -> Tensor:
        return self.out(self.drop(self.hidden(h)))

    def hidden(self, h: Tensor) -> Tensor:
        """The hidden layer after its activation."""
        up: Tensor = self.up(h)
        if self.activation == "swiglu":
            gate, value = up.chunk(2, -1)
            return F.silu(gate) * value
        return F.relu(up) if self.activation == "relu" else F.gelu(up)


class Layer(nn.Module, ABC):
    """One layer of a decoder."""

    attention: ProjectedAttention

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        pos_BS: Tensor,
        carried: Any = None,
        cache: LayerCache | None = None,
        scored: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Hidden states (B, T, E), and the state that the encoding passes to the next layer
        (``AttentionInputs.carried``). With ``scored``, in the last layer, the states of these
        tokens alone, (N, E)."""

    @abstractmethod
    def initialise(self, n_layers: int) -> None:
        """Draw the initial weights from torch's generator."""


class Block(Layer):
    """Attention and feed-forward, each in a residual branch, normalised before or after.

    pre     x = x + attention(norm(x)),    x = x + ff(norm(x))
    post    x = norm(x + attention(x)),    x = norm(x + ff(x))
    """

    attention: MultiHeadAttention

    def __init__(self, cfg: TransformerSizes, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.pre, self.scaled = cfg.norm_position == "pre", cfg.init == "scaled"
        self.attention, self.ff, self.drop = attention, FeedForward(cfg), nn.Dropout(cfg.dropout)
        self.norm_attention, self.norm_ff = cfg.new_norm(), cfg.new_norm()

    def forward(
        self,
        x: Tensor,
        pos_BS: Tensor,
        carried: Any = None,
        cache: LayerCache | None = None,
        scored: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        encoding = self.attention.encoding
        x = encoding.block_input(x, last_positions(pos_BS, x.shape[1]))
        h = self.norm_attention(x) if self.pre else x
        a, carried = self.attention(h, pos_BS, carried, cache)
        x = pick(x + self.drop(a), scored)
        h = self.norm_ff(x) if self.pre else self.norm_attention(x)
        x = (x if self.pre else h) + self.drop(self.ff(h))
        if scored is None:
            carried = encoding.update_state(carried, h)
        return (x if self.pre else self.norm_ff(x)), carried

    def initialise(self, n_layers: int) -> None:
        for linear in (self.attention.qkv, self.attention.out, self.ff.up, self.ff.out):
            draw(linear, biases=not self.scaled)
        if self.attention.gate is not None:
            draw(self.attention.gate)
        if isinstance(self.attention.normalizer, ASEntmax):
            draw(self.attention.normalizer.beta)
            draw(self.attention.normalizer.gamma)
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
        self.tied, self.drop = cfg.tied_embeddings, nn.Dropout(cfg.dropout)
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
        scored: Tensor | None = None,
    ) -> Tensor:
        x, carried = self.drop(self.embed(tokens_BT, pos_BS, cache)), None
        for i, layer in enumerate(self.blocks):
            last = i == len(self.blocks) - 1
            layer_cache = None if cache is None else cache.layers[i]
            x, carried = layer(x, pos_BS, carried, layer_cache, scored if last else None)
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
