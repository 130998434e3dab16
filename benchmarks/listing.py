"""CoPE's attention as its paper lists it, operation by operation: the reference for its speed.

Shape letters: B batch, H heads, L tokens, D head width, R rows of the table.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.ours import Built, sized, transformer


class Listing(nn.Module):
    """Golovneva 2024, listing 1: gates are sigmoids of the logits, positions their sums from the
    query back to the key, clamped to the last row; rows of the table are interpolated."""

    def __init__(self, length: int, width: int, p: float) -> None:
        super().__init__()
        self.width, self.p, self.last = width, p, length
        index = torch.arange(length)
        # Adding -inf is cheaper than masked_fill of (B, H, L, L).
        self.mask_LL = torch.zeros(length, length).masked_fill(index[:, None] < index, -math.inf)
        self.table_DR = nn.Parameter(torch.zeros(width, length + 1))

    def forward(self, q_BHLD: Tensor, k_BHLD: Tensor, v_BHLD: Tensor) -> Tensor:
        # The mask makes the gates of later keys zero.
        logits = q_BHLD @ k_BHLD.transpose(-1, -2) / math.sqrt(self.width) + self.mask_LL
        gates = torch.sigmoid(logits)
        position = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=self.last)
        above, below = position.ceil().long(), position.floor().long()
        scores_BHLR = q_BHLD @ self.table_DR
        at_above, at_below = scores_BHLR.gather(-1, above), scores_BHLR.gather(-1, below)
        fraction = position - below
        logits = logits + at_above * fraction + at_below * (1 - fraction)
        return F.dropout(logits.softmax(-1), self.p) @ v_BHLD


def attention(size: str, length: int, batch: int, dropout: float) -> Built:
    """Forward and backward pass from contiguous queries, keys and values (B, H, L, D)."""
    cfg = transformer(sized("cope", size, dropout))
    torch.manual_seed(0)
    heads, width = cfg.n_heads, cfg.d_model // cfg.n_heads
    core = Listing(length, width, dropout)
    qkv = [torch.randn(batch, heads, length, width, requires_grad=True) for _ in range(3)]
    grad = torch.randn(batch, heads, length, width)

    def run() -> None:
        torch.autograd.backward(core(*qkv), grad)
        for x in qkv:
            x.grad = None
        core.zero_grad(set_to_none=True)

    return Built(run)
