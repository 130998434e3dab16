"""The encoder's and the decoder's attention to the whole input, by PyTorch's fused kernel."""

import torch.nn.functional as F
from torch import Tensor

from pe_lab.core.dropout import Drop
from pe_lab.kernels.attention import backward_is_unordered, wide
from pe_lab.models.encoder_decoder_layers import FullAttention


class FastFullAttention(FullAttention):
    """``FullAttention`` by PyTorch's fused attention."""

    def heads(self, x_BSE: Tensor) -> Tensor:
        return super().heads(wide(x_BSE))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, drop: Drop | None
    ) -> Tensor:
        learned = mask is not None and (mask.requires_grad or mask.dtype != q.dtype)
        if drop is None and not learned and not backward_is_unordered(q):
            return F.scaled_dot_product_attention(q, k, v, mask)
        return super().attend(q, k, v, mask, drop)
