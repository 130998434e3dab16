"""A learned factor for every absolute position."""

import torch.nn.functional as F
from torch import Tensor

from pe_lab.pe.learned import PositionTable


class Multiplicative(PositionTable):
    """Learned factors of the absolute position, multiplied with the token embeddings.

    x_i * (1 + table[i]), feature by feature, table (max_len, E). Source: Su's blog, 8130
    (2021), x_k * p_k in the place of x_k + p_k; the table is p - 1, so that weight decay draws p
    to 1. The source gives no start: here p is normal around 1 with deviation 1, as spread as the
    table of ``learned``. A position past ``max_len`` has no row and is an error. Absolute; causal.
    """

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        return x_BSE * (1 + F.embedding(pos_BS, self.table))
