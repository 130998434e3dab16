import torch
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding, by_distance
from pe_lab.pe.functional import alibi_slopes, distances


class ALiBi(PositionalEncoding):
    """Penalty on the logits, linear in the distance, with a slope for each head.

        logits[h, i, j] = q_i . k_j / sqrt(D) - slopes[h] (i - j)
        slopes[h]       = 2^(-8 h / H),   h = 1 .. H                          (H,)

    Where H is no power of two, the slopes are interpolated as Press does. ``learned: true`` makes
    the slopes of each layer parameters that start there. Any length. Not absolute; causal.

    Source: Press 2021 (2108.12409).
    """

    shift_invariant = True
    reads_positions = float

    def __init__(self, dims: Dims, learned: bool) -> None:
        super().__init__()
        slopes = torch.tensor(alibi_slopes(dims.n_heads))
        self.slopes = nn.Parameter(slopes) if learned else nn.Buffer(slopes, persistent=False)

    @by_distance
    def bias(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor:
        return -self.slopes[:, None, None] * distances(pos_q_BT, pos_k_BS)[:, None]
