"""The encoder-decoder transformer.

Shape letters: B batch, P tokens of the input part, U new tokens of the output part and S tokens of
it so far, T queries, E model width, H heads, D head width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from pe_lab.models.attention import (
    MultiHeadAttention,
    features_to_heads,
    last_positions,
    wide,
)
from pe_lab.models.config import Activation, TransformerSizes, Vocabulary
from pe_lab.models.conv import AttentionConvKeys, Place
from pe_lab.models.input_output import InputOutput, InputOutputConfig
from pe_lab.models.kv_cache import Cache, LayerCache
from pe_lab.models.transformer import FeedForward, TransformerConfig, draw
from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import additive


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(AttentionConvKeys, InputOutputConfig):
    """Encoder-decoder transformer: a bidirectional encoder, and a causal decoder that attends to
    it.

    The encoder reads x_1 .. x_P, the input part and its separator, the decoder the output part
    from the separator on, which is its start token; with Att(q, k, v) = softmax(q k^T / sqrt(D))
    v in H heads,

        encoder layer   x = x + Att(x, x, x),  x = x + FF(x)              each i sees all of 1 .. P
        decoder layer   y = y + Att(y, y, y)                              i sees 1 .. i
                        y = y + Att(y, x, x),  y = y + FF(y)              x: of the last layer

    with a norm before each branch and at both ends (``norm_position: pre``), or after each sum,
    as in the paper. Token embeddings are shared by encoder and decoder, as in the paper (which also
    shares them with the output layer). The paper adds sinusoids to both inputs: ``pe=sinusoidal``,
    dropout 0.1 and label smoothing 0.1, which is not implemented. Weights start as the
    transformer's; the output of a branch is divided by the square root of the number of branches in
    its stack. Source: Vaswani 2017 (1706.03762).

    Positions of the output part start again from the first position of the sequence. An encoding
    of the input acts on both inputs with the same parameters; inside, the layers 0 .. n-1 are the
    encoder's and n .. 2n-1 the decoder's, each with separate parameters unless the encoding
    shares them. A bias by distance uses |i - j| in the encoder. Attention to the encoder
    has no encoding. Without an encoding the encoder does not depend on the order of its tokens.
    """

    n_heads: PositiveInt
    d_ff: PositiveInt | None
    dropout: Annotated[float, Field(ge=0, lt=1)]
    norm: Literal["layernorm", "rmsnorm"]
    norm_position: Literal["pre", "post"]
    activation: Activation
    tied_embeddings: bool
    conv_at: Place = "qkv"

    def __post_init__(self) -> None:
        # Building it checks that the sizes fit together.
        assert self.stack.window is None

    @property
    def stack(self) -> TransformerConfig:
        """The transformer whose layers have these sizes."""
        return TransformerConfig(**vars(self))

    def dims(self, vocab_size: int, train_len: int, max_len: int) -> Dims:
        return replace(self.stack.dims(vocab_size, train_len, max_len), n_layers=2 * self.n_layers)

    def refuses(self, encoding: PositionalEncoding) -> str | None:
        if both_ways(encoding):
            return None
        return (
            "is defined for causal attention only, and the encoder is bidirectional: choose "
            "one that is defined there"
        )

    def null_values(self) -> dict[str, Any]:
        return self.stack.null_values()

    def weights(self) -> int:
        ff = 2 * self.d_model * self.stack.ff_width
        return self.n_layers * (12 * self.d_model**2 + 2 * ff)

    def build(
        self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding]
    ) -> "EncoderDecoder":
        assert vocabulary.separator is not None
        return EncoderDecoder(self, vocabulary.size, vocabulary.separator, encodings)


def both_ways(encoding: PositionalEncoding) -> bool:
    """Whether an encoding can be used in bidirectional attention: by rotations, or by a bias, which
    keys after the query get with query and key exchanged."""
    inside = encoding.hooks() - {"embed", "block_input"}
    return encoding.window is None and inside <= {"rotate", "bias"} and not encoding.causal


class FullAttention(nn.Module):
    """Multi-head attention without a causal mask: self-attention of the encoder, and
    cross-attention of the decoder, which has no convolution."""

    def __init__(self, cfg: TransformerSizes, cross: bool) -> None:
        super().__init__()
        self.n_heads, self.p = cfg.n_heads, cfg.dropout
        self.q = nn.Linear(cfg.d_model, cfg.d_model)
        self.kv = nn.Linear(cfg.d_model, 2 * cfg.d_model)
        self.out = nn.Linear(cfg.d_model, cfg.d_model)
        e = cfg.d_model
        self.conv_q, self.conv_kv = (
            None if cross else cfg.new_conv("qkv", width) for width in (e, 2 * e)
        )

    def keys_and_values(self, x_BSE: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each (B, H, S, D)."""
        kv_BSX = self.kv(x_BSE)
        k, v = (kv_BSX if self.conv_kv is None else self.conv_kv(wide(kv_BSX))).chunk(2, -1)
        return self.heads(k), self.heads(v)

    def forward(
        self,
        x_BTE: Tensor,
        kv: tuple[Tensor, Tensor],
        seen_BS: Tensor | None,
        encoding: PositionalEncoding | None = None,
        pos_BS: Tensor | None = None,
    ) -> Tensor:
        """The output, (B, T, E).

        Args:
            kv: from ``keys_and_values``.
            seen_BS: False for padding; None: there is no padding.
            encoding, pos_BS: for self-attention; None for cross-attention.
        """
        q_BTE, (k, v) = self.q(x_BTE), kv
        q = self.heads(q_BTE if self.conv_q is None else self.conv_q(wide(q_BTE)))
        mask = None if seen_BS is None else additive(seen_BS, q.dtype)[:, None, None]
        if encoding is not None and q.numel():
            assert pos_BS is not None
            q, k = encoding.rotate(q, k, AttentionInputs(x_BTE, q, k, v, pos_BS, pos_BS))
            bias = encoding.bias(pos_BS, pos_BS)
            if bias is not None:
                # For keys ahead of the query: the bias with query and key exchanged.
                ahead_BTS = pos_BS[:, :, None] < pos_BS[:, None]
                bias = torch.where(ahead_BTS[:, None], bias.mT, bias)
                mask = bias if mask is None else bias + mask
        return self.out(self.attend(q, k, v, mask).transpose(1, 2).flatten(-2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """softmax(q k^T / sqrt(D) + mask) v, (B, H, T, D)."""
        logits = (q * q.shape[-1] ** -0.5) @ k.mT
        weights = (logits if mask is None else logits + mask).softmax(-1)
        return F.dropout(weights, self.p, self.training).to(v.dtype) @ v

    def heads(self, x_BSE: Tensor) -> Tensor:
        return features_to_heads(wide(x_BSE), self.n_heads)

    def initialise(self, branches: int) -> None:
        draw(self.q)
        initialise(self.kv, self.out, branches)


def initialise(into: nn.Linear, out: nn.Linear, branches: int) -> None:
    """Draw the initial weights of one of ``branches`` residual branches."""
    draw(into)
    draw(out)
    out.weight.div_(math.sqrt(branches))


class Residual(nn.Module):
    """A residual connection: x + dropout(f(norm(x))), or norm(x + dropout(f(x)))."""

    def __init__(self, cfg: TransformerSizes) -> None:
        super().__init__()
        self.pre, self.norm = cfg.norm_position == "pre", cfg.new_norm()
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            return x + self.drop(f(self.norm(x)))
        return self.norm(x + self.drop(f(x)))


class EncoderLayer(nn.Module):
    """Self-attention to the whole input, then a feed-forward."""

    def __init__(self, cfg: TransformerSizes, encoding: PositionalEncoding) -> None:
        super().__init__()
        self.encoding = encoding
        self.attention, self.ff = FullAttention(cfg, cross=False), FeedForward(cfg)
        self.attended, self.fed = Residual(cfg), Residual(cfg)

    def forward(self, x_BPE: Tensor, pos_BP: Tensor, seen_BP: Tensor | None) -> Tensor:
        x = self.encoding.block_input(x_BPE, pos_BP)
        x = self.attended(
            x,
            lambda h: self.attention(
                h, self.attention.keys_and_values(h), seen_BP, self.encoding, pos_BP
            ),
        )
        return self.fed(x, self.ff)

    def initialise(self, n_layers: int) -> None:
        self.attention.initialise(2 * n_layers)
        initialise(self.ff.up, self.ff.out, 2 * n_layers)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the encoder, then a feed-forward."""

    def __init__(self, cfg: TransformerSizes, encoding: PositionalEncoding) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(cfg, encoding)
        self.cross = FullAttention(cfg, cross=True)
        self.ff = FeedForward(cfg)
        self.attended, self.crossed, self.fed = (Residual(cfg) for _ in range(3))

    def forward(
        self,
        y_BUE: Tensor,
        pos_BS: Tensor,
        kv: tuple[Tensor, Tensor],
        seen_BP: Tensor | None,
        cache: LayerCache | None,
    ) -> Tensor:
        """
        Args:
            kv: keys and values of the encoder's output, from ``cross.keys_and_values``.
        """
        y = self.attention.encoding.block_input(y_BUE, last_positions(pos_BS, y_BUE.shape[1]))
        y = self.attended(y, lambda h: self.attention(h, pos_BS, None, cache)[0])
        y = self.crossed(y, lambda h: self.cross(h, kv, seen_BP))
        return self.fed(y, self.ff)

    def initialise(self, n_layers: int) -> None:
        initialise(self.attention.qkv, self.attention.out, 3 * n_layers)
        self.cross.initialise(3 * n_layers)
        initialise(self.ff.up, self.ff.out, 3 * n_layers)


@dataclass(frozen=True)
class Memory:
    """The encoded input: keys and values for each layer of the decoder, and which are not
    padding."""

    kv: list[tuple[Tensor, Tensor]]
    seen_BP: Tensor | None


class EncoderDecoder(InputOutput):
    """``encodings`` has one for each layer, the encoder's first; ``embed`` of the first is called
    on both inputs."""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        vocab_size: int,
        separator: int,
        encodings: Sequence[PositionalEncoding],
    ) -> None:
        super().__init__()
        cfg, n = config.stack, config.n_layers
        self.separator, self.tied = separator, cfg.tied_embeddings
        self.drop = nn.Dropout(cfg.dropout)
        self.tokens = nn.Embedding(vocab_size, cfg.d_model)
        self.encoder: Any = nn.ModuleList(EncoderLayer(cfg, e) for e in encodings[:n])
        self.decoder: Any = nn.ModuleList(DecoderLayer(cfg, e) for e in encodings[n:])
        pre = cfg.norm_position == "pre"
        self.encoded, self.decoded = (cfg.new_norm() if pre else nn.Identity() for _ in range(2))
        self.head = nn.Linear(cfg.d_model, vocab_size, bias=False)
        self.conv = cfg.new_conv("embedding", cfg.d_model)
        self.initialise_embeddings()
        layers: list[Any] = [*self.encoder, *self.decoder]
        with torch.no_grad():
            for layer in layers:
                layer.initialise(n)

    @property
    def encodings(self) -> list[PositionalEncoding]:
        read = [layer.encoding for layer in self.encoder]
        return read + [layer.attention.encoding for layer in self.decoder]

    def encode(self, tokens_BP: Tensor, pos_BP: Tensor, seen_BP: Tensor | None) -> Memory:
        x = self.drop(self.embed(tokens_BP, pos_BP, None))
        for layer in self.encoder:
            x = layer(x, pos_BP, seen_BP)
        x = self.encoded(x)
        return Memory([layer.cross.keys_and_values(x) for layer in self.decoder], seen_BP)

    def decode(
        self,
        tokens_BU: Tensor,
        pos_BS: Tensor,
        memory: Memory,
        cache: Cache | None,
    ) -> Tensor:
        y = self.drop(self.embed(tokens_BU, pos_BS, cache))
        for i, layer in enumerate(self.decoder):
            layer_cache = None if cache is None else cache.layers[i]
            y = layer(y, pos_BS, memory.kv[i], memory.seen_BP, layer_cache)
        return self.decoded(y)

    def empty_output_cache(self) -> Cache:
        return Cache([LayerCache() for _ in self.decoder])
