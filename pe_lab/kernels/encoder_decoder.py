"""The encoder-decoder transformer with fused attention, residual additions, dropout and norms."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.common.dropout import Drop
from pe_lab.kernels.attention import backward_is_unordered, wide
from pe_lab.kernels.cpu.add_norm import fused_add_norm, fused_norm
from pe_lab.kernels.layers import add_feed_forward
from pe_lab.models.encoder_decoder_layers import (
    DecoderLayer,
    EncoderLayer,
    FullAttention,
    Residual,
)
from pe_lab.models.kv_cache import LayerCache
from pe_lab.models.layout import last_positions

Sum = tuple[Tensor, Tensor]


class FastFullAttention(FullAttention):
    """``FullAttention`` by kernels; ``features`` is what its ``out`` is applied to."""

    def heads(self, x_BSE: Tensor) -> Tensor:
        return super().heads(wide(x_BSE))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, drop: Drop | None
    ) -> Tensor:
        learned = mask is not None and (mask.requires_grad or mask.dtype != q.dtype)
        if drop is None and not learned and not backward_is_unordered(q):
            return F.scaled_dot_product_attention(q, k, v, mask)
        return super().attend(q, k, v, mask, drop)


def add(
    x: Tensor, residual: Residual, branch: Callable[[Tensor, Tensor, nn.Module | None], Sum]
) -> Tensor:
    """``Residual``, of a branch that is added, and normalised after it, in one kernel.

    Args:
        branch: of x, the branch's input and the norm after the sum.
    """
    x, h = fused_norm(x, residual.norm) if residual.pre else (x, x)
    return branch(x, h, None if residual.pre else residual.norm)[1]


class FastEncoderLayer(EncoderLayer):
    """``EncoderLayer`` by kernels."""

    def forward(
        self, x_BPE: Tensor, pos_BP: Tensor, seen_BP: Tensor | None, drop: Drop | None
    ) -> Tensor:
        drops = [drop and drop.at(place) for place in (1, 2, 3)]

        def attention(x: Tensor, h: Tensor, norm: nn.Module | None) -> Sum:
            kv = self.attention.keys_and_values(h)
            features = self.attention.features(h, kv, seen_BP, drops[0], self.encoding, pos_BP)
            return fused_add_norm(x, features, self.attention.out, norm, drops[1])

        x = add(self.encoding.block_input(x_BPE, pos_BP), self.attended, attention)
        return add(x, self.fed, lambda x, h, norm: add_feed_forward(x, h, self.ff, norm, drops[2]))


class FastDecoderLayer(DecoderLayer):
    """``DecoderLayer`` by kernels."""

    def forward(
        self,
        y_BUE: Tensor,
        pos_BS: Tensor,
        kv: tuple[Tensor, Tensor],
        seen_BP: Tensor | None,
        drop: Drop | None,
        cache: LayerCache | None,
    ) -> Tensor:
        drops = [drop and drop.at(place) for place in (1, 2, 3, 4, 5)]

        def attention(y: Tensor, h: Tensor, norm: nn.Module | None) -> Sum:
            features, _ = self.attention(h, pos_BS, None, cache, drops[0], project_out=False)
            return fused_add_norm(y, features, self.attention.out, norm, drops[1])

        def cross(y: Tensor, h: Tensor, norm: nn.Module | None) -> Sum:
            features = self.cross.features(h, kv, seen_BP, drops[2])
            return fused_add_norm(y, features, self.cross.out, norm, drops[3])

        y = self.attention.encoding.block_input(y_BUE, last_positions(pos_BS, y_BUE.shape[1]))
        y = add(add(y, self.attended, attention), self.crossed, cross)
        return add(y, self.fed, lambda y, h, norm: add_feed_forward(y, h, self.ff, norm, drops[4]))
