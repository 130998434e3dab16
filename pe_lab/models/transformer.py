"""A decoder-only transformer.

Shape letters as in decoder.py, which describes the initialisation too; H heads, D head width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.core.dropout import Drop, dropout
from pe_lab.models.attention import MultiHeadAttention
from pe_lab.models.base import Vocabulary
from pe_lab.models.decoder import Decoder, Layer, draw
from pe_lab.models.kv_cache import LayerCache
from pe_lab.models.layout import last_positions
from pe_lab.models.transformer_config import TransformerSizes
from pe_lab.pe.base import PositionalEncoding


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(TransformerSizes):
    """Decoder-only transformer: in every layer multi-head attention, then a feed-forward."""

    def refuses(self, encoding: PositionalEncoding) -> str | None:
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
        gates = 2 if cfg.activation == "swiglu" else 1
        self.up = nn.Linear(cfg.d_model, gates * cfg.ff_width)
        self.out = nn.Linear(cfg.ff_width, cfg.d_model)

    def forward(self, h: Tensor, drop: Drop | None = None, rows: Tensor | None = None) -> Tensor:
        """
        Args:
            drop, rows: dropout of the hidden units, if they are dropped, as in ``Drop``.
        """
        hidden = self.hidden(h)
        if drop is not None and self.drops_hidden:
            hidden = drop(hidden, rows)
        out: Tensor = self.out(hidden)
        return out

    def hidden(self, h: Tensor) -> Tensor:
        """The hidden layer after its activation."""
        up: Tensor = self.up(h)
        if self.activation == "swiglu":
            gate, value = up.chunk(2, -1)
            return F.silu(gate) * value
        return F.relu(up) if self.activation == "relu" else F.gelu(up)


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
    ) -> tuple[Tensor, Any]:
        encoding = self.attention.encoding
        drops = [drop and drop.at(place) for place in (1, 2, 3)]
        x = encoding.block_input(x, last_positions(pos_BS, x.shape[1]))
        if self.pre:
            a, carried = self.attention(self.norm_attention(x), pos_BS, carried, cache, drops[0])
            x = x + dropout(a, drops[1])
            h = self.norm_ff(x)
            x = x + dropout(self.ff(h, drop), drops[2])
        else:
            a, carried = self.attention(x, pos_BS, carried, cache, drops[0])
            h = self.norm_attention(x + dropout(a, drops[1]))
            x = self.norm_ff(h + dropout(self.ff(h, drop), drops[2]))
        return x, encoding.update_state(carried, h)

    def initialise(self, n_layers: int) -> None:
        for linear in (self.attention.qkv, self.attention.out, self.ff.up, self.ff.out):
            draw(linear, biases=not self.scaled)
        if self.scaled:
            for linear in (self.attention.out, self.ff.out):
                linear.weight.div_(math.sqrt(2 * n_layers))


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
