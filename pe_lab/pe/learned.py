"""A learned vector for every absolute position."""

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding


class PositionTable(PositionalEncoding):
    """A learned vector for each of ``max_len`` positions; null: as many as the run needs."""

    any_order = True

    def __init__(self, dims: Dims, max_len: PositiveInt | None) -> None:
        super().__init__()
        self.max_len = dims.max_len if max_len is None else max_len
        self.table = nn.Parameter(torch.randn(self.max_len, dims.d_model))

    def null_values(self) -> dict[str, Any]:
        return {"max_len": self.max_len}


class Learned(PositionTable):
    """Learned table of absolute positions, added to the token embeddings.

    x_i + table[i], table (max_len, E). Source: BERT (1810.04805), GPT-2; Vaswani 2017
    (1706.03762) names it too. A position past ``max_len`` has no row and is an error.
    Absolute; causal.

    Rows start normal with deviation 1, the deviation of the token embeddings: BERT, GPT-2 and
    the code of Golovneva 2024 all draw the two tables alike.
    """

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        return x_BSE + F.embedding(pos_BS, self.table)
