"""Eager attention in memory that grows with the length, not with its square.

The weights of one block of queries after another are computed, and computed again in the backward
pass. It suits every encoding whose decoding equals its whole pass, and so needs no kernel.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pe_lab.core.dropout import Drop, attention_rows
from pe_lab.models.attention import Attention
from pe_lab.pe.base import AttentionInputs

BLOCK = 2**20
"""Logits of a block, in all sequences and heads."""


def by_blocks(
    attention: Attention, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs, drop: Drop | None
) -> Tensor:
    """The averaged values, (B, H, T, W), equal to ``attention.average`` of all weights at once."""
    (b, h, t, _), s = q_BHTD.shape, k_BHSD.shape[2]
    rows_BHT = attention_rows(q_BHTD.new_empty(()).expand(b, h, t, s))

    def block(first: int, last: int) -> Tensor:
        keys, queries = slice(s - t + last), slice(first, last)
        part = AttentionInputs(
            inputs.x_BSE[:, keys],
            inputs.q_BHTD[:, :, queries],
            inputs.k_BHSD[:, :, keys],
            inputs.v_BHSD[:, :, keys],
            inputs.pos_q_BT[:, queries],
            inputs.pos_k_BS[:, keys],
            inputs.carried,
            inputs.window,
        )
        _, weights = attention.weights(q_BHTD[:, :, queries], k_BHSD[:, :, keys], part)
        return attention.average(weights, part, drop, rows_BHT[:, :, queries])

    height = max(1, BLOCK // (b * h * s))
    edges = [(first, min(first + height, t)) for first in range(0, t, height)]
    if not torch.is_grad_enabled():
        return torch.cat([block(*edge) for edge in edges], 2)
    outs = [
        checkpoint(block, *edge, use_reentrant=False, preserve_rng_state=False) for edge in edges
    ]
    return torch.cat(outs, 2)
