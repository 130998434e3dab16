"""A learned factor for every absolute position."""

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding


class Multiplicative(PositionalEncoding):
    """Learned factors of the absolute position, multiplied with the token embeddings.

    x_i * (1 + table[i]), feature by feature, table (max_len, E). Source: Su's blog, 8130
    (2021), x_k * p_k in the place of x_k + p_k; the table is p - 1, so that weight decay draws p
    to 1. The source gives no start: here p is normal around 1 with deviation 1, as spread as the
    table of ``learned``. A position past ``max_len`` has no row and is an error. Absolute; causal.
    """

    def __init__(self, dims: Dims, max_len: PositiveInt | None) -> None:
        super().__init__()
        self.max_len = dims.max_len if max_len is None else max_len
        self.table = nn.Parameter(torch.randn(self.max_len, dims.d_model))

    def null_values(self) -> dict[str, Any]:
        return {"max_len": self.max_len}

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        return x_BSE * (1 + F.embedding(pos_BS, self.table))
