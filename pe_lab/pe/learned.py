"""A learned vector for every absolute position."""

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.functional import look_up


class PositionTable(PositionalEncoding):
    """A learned vector for each of ``max_len`` positions; null: as many as the run needs."""

    def __init__(self, dims: Dims, max_len: PositiveInt | None) -> None:
        super().__init__()
        self.max_len = dims.max_len if max_len is None else max_len
        self.table = nn.Parameter(torch.randn(self.max_len, dims.d_model))


class Learned(PositionTable):
    """Learned table of absolute positions, added to the token embeddings.

        x_i + table[i]                                           table (max_len, E)

    Rows start normal with deviation 1, as the token embeddings do: BERT, GPT-2 and the code of
    Golovneva 2024 draw the two tables alike. A position past ``max_len`` is an error. Absolute;
    causal.

    Source: BERT (1810.04805), GPT-2; Vaswani 2017 (1706.03762) names it too.
    """

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        return x_BSE + look_up(pos_BS, self.table)
