"""Layers of decoder-only models with fused residual additions, dropout and norms.

The last layer computes only the tokens that are scored.
"""

from typing import Any

from torch import Tensor, nn

from pe_lab.common.dropout import Drop, dropout
from pe_lab.kernels.cpu.add_norm import fused_add_norm, fused_norm, supported
from pe_lab.models.decoder import Decoder, Layer
from pe_lab.models.gau import GAU, Unit
from pe_lab.models.kv_cache import Cache, LayerCache
from pe_lab.models.layout import last_positions
from pe_lab.models.scored_positions import ScoredPositions
from pe_lab.models.transformer import Block, FeedForward, Transformer


class FastLayer(Layer):
    """A layer whose ``forward`` takes ``scored``: it then returns the states (N, E) of these tokens
    only, and nothing for a next layer."""

    def attend(
        self,
        h: Tensor,
        pos_BS: Tensor,
        carried: Any,
        cache: LayerCache | None,
        drop: Drop | None,
        scored: ScoredPositions | None,
    ) -> tuple[Tensor, Any]:
        """The attention before its output projection; queries from the first scored token on."""
        queries = None
        if scored is not None and self.attention.encoding.whole_sequence is None:
            queries = h.shape[1] - scored.first
        features, carried = self.attention(
            h, pos_BS, carried, cache, drop, queries=queries, project_out=False
        )
        return features, carried


class FastBlock(FastLayer, Block):
    """``Block`` by kernels."""

    def forward(
        self,
        x: Tensor,
        pos_BS: Tensor,
        carried: Any = None,
        cache: LayerCache | None = None,
        drop: Drop | None = None,
        scored: ScoredPositions | None = None,
    ) -> tuple[Tensor, Any]:
        encoding, out, t = self.attention.encoding, self.attention.out, x.shape[1]
        drops = (None,) * 3 if drop is None else tuple(drop.at(place) for place in (1, 2, 3))
        x = encoding.block_input(x, last_positions(pos_BS, t))
        x, h = fused_norm(x, self.norm_attention) if self.pre else (x, x)
        branch, carried = self.attend(h, pos_BS, carried, cache, drops[0], scored)
        rows = None
        if scored is not None:
            rows, x, branch = scored.at_N, scored.pick(x), scored.pick(branch, t)
        if self.pre:
            x, h = fused_add_norm(x, branch, out, self.norm_ff, drops[1], rows)
            x, _ = add_feed_forward(x, h, self.ff, None, drops[2], rows)
        else:
            _, h = fused_add_norm(x, branch, out, self.norm_attention, drops[1], rows)
            _, x = add_feed_forward(h, h, self.ff, self.norm_ff, drops[2], rows)
        return x, carried if scored is not None else encoding.update_state(carried, h)


class FastUnit(FastLayer, Unit):
    """``Unit`` by kernels."""

    def forward(
        self,
        x: Tensor,
        pos_BS: Tensor,
        carried: Any = None,
        cache: LayerCache | None = None,
        drop: Drop | None = None,
        scored: ScoredPositions | None = None,
    ) -> tuple[Tensor, Any]:
        t = x.shape[1]
        drops = (None,) * 2 if drop is None else (drop.at(1), drop.at(2))
        x = self.attention.encoding.block_input(x, last_positions(pos_BS, t))
        x, h = fused_norm(x, self.norm) if self.pre else (x, x)
        mixed, carried = self.attend(h, pos_BS, carried, cache, drops[0], scored)
        rows = None
        if scored is not None:
            rows, mixed = scored.at_N, scored.pick(mixed, t)
            x, h = scored.pick(x), scored.pick(h)
        gated, after = self.activation(self.gate(h)) * mixed, None if self.pre else self.norm
        _, x = fused_add_norm(x, gated, self.out, after, drops[1], rows)
        return x, carried


def add_feed_forward(
    x: Tensor,
    h: Tensor,
    ff: FeedForward,
    norm: nn.Module | None,
    drop: Drop | None,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``fused_add_norm`` of the feed-forward of h."""
    if ff.activation == "relu":
        return fused_add_norm(x, h, ff.out, norm, drop, rows, up=ff.up)
    return fused_add_norm(x, ff.hidden(h), ff.out, norm, drop, rows)


class FastLayerNorm(nn.LayerNorm):
    """``LayerNorm`` by a kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return fused_norm(x, self)[1] if supported(x, self, None) else super().forward(x)


class FastRMSNorm(nn.RMSNorm):
    """``RMSNorm`` by a kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return fused_norm(x, self)[1] if supported(x, self, None) else super().forward(x)


class FastDecoder(Decoder):
    """``Decoder`` whose last layer computes the scored tokens only."""

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
            given = carried, cache and cache.layers[i], drop and drop.at(4 * (i + 1))
            if i == last and scored is not None and isinstance(layer, FastLayer):
                x, carried = layer(x, pos_BS, *given, scored)
                scored = None
            else:
                x, carried = layer(x, pos_BS, *given)
        hidden: Tensor = self.norm(x if scored is None else scored.pick(x))
        return hidden


class FastTransformer(FastDecoder, Transformer):
    """``Transformer`` by kernels."""


class FastGAU(FastDecoder, GAU):
    """``GAU`` by kernels."""
