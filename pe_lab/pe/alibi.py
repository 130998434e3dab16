"""Attention with linear biases."""

import torch
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding, by_distance
from pe_lab.pe.functional import alibi_slopes, distances


class ALiBi(PositionalEncoding):
    """Penalty on the logits, linear in the distance, with a slope for each head.

    logits_ij = q_i . k_j / sqrt(D) - m_h (i - j), m_h = 2^(-8h/H) for h = 1..H and Press's
    interpolation where H is no power of two. Source: Press 2021 (2108.12409).
    ``learned: true`` makes each layer's slopes parameters that start there, unconstrained.
    Any length. Not absolute; causal.
    """

    shift_invariant = True
    both_ways = True
    needs_softmax = "its bias"
    slopes: Tensor

    def __init__(self, dims: Dims, learned: bool) -> None:
        super().__init__()
        slopes = torch.tensor(alibi_slopes(dims.n_heads))
        if learned:
            self.slopes = nn.Parameter(slopes)
        else:
            self.register_buffer("slopes", slopes, persistent=False)

    @by_distance
    def bias(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor | None:
        return -self.slopes[:, None, None] * distances(pos_q_BT, pos_k_BS)[:, None]
