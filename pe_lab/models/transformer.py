"""A decoder-only transformer.

Shape letters as in decoder.py, which tells the initialisation too; H heads, D head width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.common.dropout import Drop
from pe_lab.config.schema import closed
from pe_lab.kernels.cpu.add_norm import fused_add_norm, fused_norm
from pe_lab.models.attention import MultiHeadAttention
from pe_lab.models.base import Vocabulary
from pe_lab.models.decoder import Decoder, DecoderConfig, Layer, draw
from pe_lab.models.kv_cache import LayerCache
from pe_lab.models.scored_positions import ScoredPositions
from pe_lab.pe.base import Dims, PositionalEncoding

Activation = Literal["relu", "gelu", "swiglu"]


@closed
class LayerConfig:
    """What one layer has otherwise than the others (``model.layers.<i>``); null: as they."""

    n_heads: PositiveInt | None = None
    d_ff: PositiveInt | None = None
    activation: Activation | None = None
    window: PositiveInt | None = None
    encoded: bool = True
    """False: the layer goes without the encoding."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(DecoderConfig):
    """Decoder-only transformer: in every layer multi-head attention, then a feed-forward."""

    n_heads: PositiveInt
    d_ff: PositiveInt | None
    activation: Activation
    layers: dict[int, LayerConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number in self.layers:
            if not 0 <= number < self.n_layers:
                raise ValueError(
                    f"layers.{number} is not there with n_layers={self.n_layers}: layers are "
                    f"numbered from 0 to {self.n_layers - 1}"
                )
        for number in range(self.n_layers):
            own = self._own(number).n_heads
            heads, at = own or self.n_heads, f"layers.{number}." if own else ""
            if self.d_model % heads:
                raise ValueError(
                    f"d_model={self.d_model} is not divisible by {at}n_heads={heads}: "
                    "choose a multiple"
                )

    def _own(self, number: int) -> LayerConfig:
        return self.layers.get(number, LayerConfig())

    def at_layer(self, number: int) -> "TransformerConfig":
        """The configuration with what is this layer's own."""
        own = self._own(number)
        changed = {
            key: value
            for key in ("n_heads", "d_ff", "activation", "window")
            if (value := getattr(own, key)) is not None
        }
        return replace(self, **changed, layers={})

    @property
    def ff_width(self) -> int:
        """Width of the feed-forward layer: d_ff, or 4 d_model (8/3 d_model for SwiGLU)."""
        if self.d_ff is not None:
            return self.d_ff
        return round(8 * self.d_model / 3) if self.activation == "swiglu" else 4 * self.d_model

    def dims(self, vocab_size: int, train_len: int, max_len: int) -> Dims:
        heads = [self._own(number).n_heads or self.n_heads for number in range(self.n_layers)]
        return Dims(
            self.d_model, self.n_heads, self.n_layers, vocab_size, train_len, max_len,
            layer_heads=tuple(heads) if len({*heads, self.n_heads}) > 1 else None,
        )  # fmt: skip

    def without(self) -> frozenset[int]:
        return frozenset(number for number, own in self.layers.items() if not own.encoded)

    def null_values(self) -> dict[str, Any]:
        return {"d_ff": self.ff_width}

    def weights(self) -> int:
        widths = [self.at_layer(number).ff_width for number in range(self.n_layers)]
        return sum(4 * self.d_model**2 + 2 * self.d_model * width for width in widths)

    def build(
        self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding], fast: bool
    ) -> "Transformer":
        return Transformer(self, vocabulary.size, encodings, fast)


class FeedForward(nn.Module):
    """linear, activation, linear; SwiGLU (Shazeer 2020) multiplies two linears."""

    def __init__(self, cfg: TransformerConfig, fast: bool) -> None:
        super().__init__()
        self.activation, self.fast = cfg.activation, fast
        gates = 2 if cfg.activation == "swiglu" else 1
        self.up = nn.Linear(cfg.d_model, gates * cfg.ff_width)
        self.out = nn.Linear(cfg.ff_width, cfg.d_model)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.out(self.hidden(h))
        return out

    def hidden(self, h: Tensor) -> Tensor:
        """What ``out`` maps."""
        wide: Tensor = self.up(h)
        if self.activation == "swiglu":
            gate, value = wide.chunk(2, -1)
            return F.silu(gate) * value
        return F.relu(wide) if self.activation == "relu" else F.gelu(wide)

    def join(
        self,
        x: Tensor,
        h: Tensor,
        norm: nn.Module | None,
        drop: Drop | None,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``joined`` with x, of what it makes of h."""
        if self.activation == "relu":
            return fused_add_norm(x, h, self.out, norm, drop, rows, up=self.up, fast=self.fast)
        return fused_add_norm(x, self.hidden(h), self.out, norm, drop, rows, fast=self.fast)


class Block(Layer):
    """Attention and feed-forward, each in a residual branch, normalised before or after."""

    attention: MultiHeadAttention

    def __init__(self, cfg: TransformerConfig, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.pre = cfg.norm_position == "pre"
        self.attention, self.ff = attention, FeedForward(cfg, attention.fast)
        self.norm_attention, self.norm_ff = cfg.new_norm(), cfg.new_norm()

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
        pe, fast = self.attention.encoding, self.attention.fast
        x = pe.block_input(x, pos_BS[:, -x.shape[1] :])
        x, seen = fused_norm(x, self.norm_attention, fast=fast) if self.pre else (x, x)
        drops = (None,) * 3 if drop is None else tuple(drop.at(place) for place in (1, 2, 3))
        mixed, carried = self.attention(
            seen, pos_BS, queries, carried, cache, drop=drops[0], scored=scored, out=False
        )
        rows = None
        if scored is not None:
            rows = scored.at_N
            x = x.flatten(0, 1).index_select(0, rows)
        after = self.norm_ff if self.pre else self.norm_attention
        x, h = fused_add_norm(x, mixed, self.attention.out, after, drops[1], rows, fast=fast)
        end = None if self.pre else self.norm_ff
        _, x = self.ff.join(x if self.pre else h, h, end, drops[2], rows)
        # No layer reads what the last one carries.
        return x, carried if scored is not None else pe.update_state(carried, h)

    def initialise(self, n_layers: int) -> None:
        for linear in (self.attention.qkv, self.attention.out, self.ff.up, self.ff.out):
            draw(linear)
        for linear in (self.attention.out, self.ff.out):
            linear.weight.div_(math.sqrt(2 * n_layers))


class Transformer(Decoder):
    """``encodings`` holds one encoding for each layer, the same object where layers share it."""

    def __init__(
        self,
        cfg: TransformerConfig,
        vocab_size: int,
        encodings: Sequence[PositionalEncoding],
        fast: bool = True,
        attention: type[MultiHeadAttention] = MultiHeadAttention,
    ) -> None:
        def block(number: int, encoding: PositionalEncoding) -> Block:
            own = cfg.at_layer(number)
            return Block(own, attention(own, encoding, fast))

        layers = (block(*numbered) for numbered in enumerate(encodings))
        super().__init__(cfg, vocab_size, layers, fast)
