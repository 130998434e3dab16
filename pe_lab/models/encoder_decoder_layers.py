"""The layers of the encoder-decoder transformer, and attention that is not causal.

Shape letters: B batch, T queries, S keys, P tokens of the input part and U of the output part,
E model width, H heads, D head width.
"""

import math
from collections.abc import Callable

from torch import Tensor, nn

from pe_lab.core.dropout import Drop, attention_rows
from pe_lab.models.attention import (
    MultiHeadAttention,
    features_to_heads,
    heads_to_features,
    last_positions,
    wide,
)
from pe_lab.models.base import dropout
from pe_lab.models.kv_cache import LayerCache
from pe_lab.models.transformer import FeedForward, draw
from pe_lab.models.transformer_config import TransformerSizes
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.masks import additive


class FullAttention(nn.Module):
    """Multi-head attention without a causal mask: self-attention of the encoder, and
    cross-attention of the decoder."""

    def __init__(self, cfg: TransformerSizes) -> None:
        super().__init__()
        self.n_heads = cfg.n_heads
        self.q = nn.Linear(cfg.d_model, cfg.d_model)
        self.kv = nn.Linear(cfg.d_model, 2 * cfg.d_model)
        self.out = nn.Linear(cfg.d_model, cfg.d_model)

    def keys_and_values(self, x_BSE: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each (B, H, S, D)."""
        k, v = self.kv(x_BSE).chunk(2, -1)
        return self.heads(k), self.heads(v)

    def forward(
        self,
        x_BTE: Tensor,
        kv: tuple[Tensor, Tensor],
        seen_BS: Tensor | None,
        drop: Drop | None,
        encoding: PositionalEncoding | None = None,
        pos_BS: Tensor | None = None,
    ) -> Tensor:
        """The output, (B, T, E).

        Args:
            kv: from ``keys_and_values``.
            seen_BS: False for padding; None: there is no padding.
            encoding, pos_BS: for self-attention; None for cross-attention.
        """
        q, (k, v) = self.heads(self.q(x_BTE)), kv
        mask = None if seen_BS is None else additive(seen_BS, q.dtype)[:, None, None]
        if encoding is not None:
            assert pos_BS is not None
            q, k = encoding.rotate(q, k, AttentionInputs(x_BTE, q, k, v, pos_BS, pos_BS))
            bias = encoding.bias(pos_BS, pos_BS)
            if bias is not None:
                # For keys after the query: the bias with query and key exchanged.
                bias = bias.tril() + bias.tril(-1).mT
                mask = bias if mask is None else bias + mask
        out: Tensor = self.out(heads_to_features(self.attend(q, k, v, mask, drop)))
        return out

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, drop: Drop | None
    ) -> Tensor:
        """softmax(q k^T / sqrt(D) + mask) v, (B, H, T, D)."""
        logits = (q * q.shape[-1] ** -0.5) @ k.mT
        weights = (logits if mask is None else logits + mask).softmax(-1)
        if drop is not None:
            weights = drop(weights, attention_rows(weights))
        mixed: Tensor = weights.to(v.dtype) @ v
        return mixed

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

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor], drop: Drop | None) -> Tensor:
        if self.pre:
            return x + dropout(f(self.norm(x)), drop)
        normed: Tensor = self.norm(x + dropout(f(x), drop))
        return normed


class EncoderLayer(nn.Module):
    """Self-attention to the whole input, then a feed-forward."""

    def __init__(self, cfg: TransformerSizes, encoding: PositionalEncoding) -> None:
        super().__init__()
        self.encoding = encoding
        self.attention, self.ff = FullAttention(cfg), FeedForward(cfg)
        self.attended, self.fed = Residual(cfg), Residual(cfg)

    def forward(
        self, x_BPE: Tensor, pos_BP: Tensor, seen_BP: Tensor | None, drop: Drop | None
    ) -> Tensor:
        drops = [drop and drop.at(place) for place in (1, 2, 3)]

        def attention(h: Tensor) -> Tensor:
            kv = self.attention.keys_and_values(h)
            mixed: Tensor = self.attention(h, kv, seen_BP, drops[0], self.encoding, pos_BP)
            return mixed

        x = self.encoding.block_input(x_BPE, pos_BP)
        x = self.attended(x, attention, drops[1])
        out: Tensor = self.fed(x, self.ff, drops[2])
        return out

    def initialise(self, n_layers: int) -> None:
        self.attention.initialise(2 * n_layers)
        initialise(self.ff.up, self.ff.out, 2 * n_layers)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the encoder, then a feed-forward."""

    def __init__(self, cfg: TransformerSizes, encoding: PositionalEncoding) -> None:
        super().__init__()
        self.attention, self.cross = MultiHeadAttention(cfg, encoding), FullAttention(cfg)
        self.ff = FeedForward(cfg)
        self.attended, self.crossed, self.fed = (Residual(cfg) for _ in range(3))

    def forward(
        self,
        y_BUE: Tensor,
        pos_BS: Tensor,
        kv: tuple[Tensor, Tensor],
        seen_BP: Tensor | None,
        drop: Drop | None,
        cache: LayerCache | None,
    ) -> Tensor:
        """
        Args:
            kv: keys and values of the encoder's output, from ``cross.keys_and_values``.
        """
        drops = [drop and drop.at(place) for place in (1, 2, 3, 4, 5)]
        y = self.attention.encoding.block_input(y_BUE, last_positions(pos_BS, y_BUE.shape[1]))
        y = self.attended(
            y, lambda h: self.attention(h, pos_BS, None, cache, drops[0])[0], drops[1]
        )
        y = self.crossed(y, lambda h: self.cross(h, kv, seen_BP, drops[2]), drops[3])
        out: Tensor = self.fed(y, self.ff, drops[4])
        return out

    def initialise(self, n_layers: int) -> None:
        initialise(self.attention.qkv, self.attention.out, 3 * n_layers)
        self.cross.initialise(3 * n_layers)
        initialise(self.ff.up, self.ff.out, 3 * n_layers)
