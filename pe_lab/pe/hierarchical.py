import math
from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.functional import look_up


class Hierarchical(PositionalEncoding):
    """Learned positions that reach the square of their number, as two digits of base n.

        x_(i n + j) + a u_i + (1 - a) u_j                      0 <= i, j < n = rows
        u_i = (table[i] - a table[0]) / (1 - a)                table (n, E)

    The first n positions are the table itself, so a model trained within them extends to n^2
    untouched. With a = 1/2, (i, j) would have the vector of (j, i). The table starts normal with
    deviation 1, as ``learned``. A position past n^2 is an error. Absolute; causal.

    Source: Su's blog, 7947 (2020), with a = 0.4.
    """

    def __init__(
        self, dims: Dims, rows: PositiveInt | None, a: Annotated[float, Field(gt=0, lt=1)]
    ) -> None:
        super().__init__()
        if a == 0.5:
            raise ValueError(
                "a=0.5 gives position i n + j the vector of j n + i: set a to another value "
                "between 0 and 1 (0.4 in the source)"
            )
        # A train length whose square is too short for a split takes more rows.
        # The smallest number whose square is enough.
        root = math.isqrt(dims.max_len - 1) + 1
        self.rows = max(dims.train_len, root) if rows is None else rows
        self.max_len, self.a = self.rows**2, a
        self.table = nn.Parameter(torch.randn(self.rows, dims.d_model))

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        u_RE = (self.table - self.a * self.table[:1]) / (1 - self.a)
        high_BSE = look_up(pos_BS // self.rows, u_RE)
        low_BSE = look_up(pos_BS % self.rows, u_RE)
        return x_BSE + self.a * high_BSE + (1 - self.a) * low_BSE
