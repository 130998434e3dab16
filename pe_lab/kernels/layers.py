"""Layers of decoder-only models; the last one computes only the tokens that are scored."""

from typing import Any

from torch import Tensor

from pe_lab.core.dropout import Drop, dropout
from pe_lab.kernels.cpu.bias_relu import feed_forward
from pe_lab.kernels.dropout import add_dropout
from pe_lab.models.decoder import Decoder, Layer
from pe_lab.models.gau import GAU, Unit
from pe_lab.models.kv_cache import Cache, LayerCache
from pe_lab.models.layout import last_positions
from pe_lab.models.scored_positions import ScoredPositions
from pe_lab.models.transformer import Block, FeedForward, Transformer


class FastFeedForward(FeedForward):
    """``FeedForward`` with fused bias and ReLU."""

    def forward(self, h: Tensor, drop: Drop | None = None, rows: Tensor | None = None) -> Tensor:
        fused = None
        if self.activation == "relu" and (drop is None or not self.drops_hidden):
            fused = feed_forward(h, self.up, self.out)
        return super().forward(h, drop, rows) if fused is None else fused


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
        encoding, t, rows = self.attention.encoding, x.shape[1], None
        drops = [drop and drop.at(place) for place in (1, 2, 3)]
        x = encoding.block_input(x, last_positions(pos_BS, t))
        h = self.norm_attention(x) if self.pre else x
        a, carried = self.attend(h, pos_BS, carried, cache, drops[0], scored)
        if scored is not None:
            rows, x, a = scored.at_N, scored.pick(x), scored.pick(a, t)
        x = add_dropout(x, self.attention.out(a), drops[1], rows)
        if self.pre:
            h = self.norm_ff(x)
            x = add_dropout(x, self.ff(h, drop, rows), drops[2], rows)
        else:
            h = self.norm_attention(x)
            x = self.norm_ff(add_dropout(h, self.ff(h, drop, rows), drops[2], rows))
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
        t, rows = x.shape[1], None
        drops = [drop and drop.at(place) for place in (1, 2)]
        x = self.attention.encoding.block_input(x, last_positions(pos_BS, t))
        h = self.norm(x) if self.pre else x
        mixed, carried = self.attend(h, pos_BS, carried, cache, drops[0], scored)
        if scored is not None:
            rows, mixed = scored.at_N, scored.pick(mixed, t)
            x, h = scored.pick(x), scored.pick(h)
        x = add_dropout(x, self.out(self.activation(self.gate(h)) * mixed), drops[1], rows)
        return x if self.pre else self.norm(x), carried


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
            state = carried, cache and cache.layers[i], drop and drop.at(4 * (i + 1))
            if i == last and scored is not None and isinstance(layer, FastLayer):
                x, carried = layer(x, pos_BS, *state, scored)
                scored = None
            else:
                x, carried = layer(x, pos_BS, *state)
        hidden: Tensor = self.norm(x if scored is None else scored.pick(x))
        return hidden


class FastTransformer(FastDecoder, Transformer):
    """``Transformer`` by kernels."""


class FastGAU(FastDecoder, GAU):
    """``GAU`` by kernels."""
