from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import frequencies, rotate_queries_and_keys, unit, widened


class RoPE2D(PositionalEncoding):
    """RoPE by the row of a token in one half of the features, by its column in the other.

        pairs 0 .. D/4 - 1:     rotated by row frequencies[m]
        pairs D/4 .. D/2 - 1:   rotated by column frequencies[m]
        frequencies[m] = base^(-4m/D),   m = 0 .. D/4 - 1

    Rows and columns are the two ids of ``positions=rows`` or another source with two axes. A single
    position is the column, and every row is 0. ``auto`` computes them from the attention's input x
    instead, starting from row_0 = column_0 = 0:

        A_t, B_t = 2 sigmoid(step(x_t))                                 step: Linear(E, 2)
        column_(t+1) = A_t column_t + B_t,   row_(t+1) = row_t + 1 - A_t

    ``step`` starts at 0, so that A = B = 1 and the column is the index of the token. A_t = 0 begins
    a row. Any length. Not absolute; causal.

    Source: Wen 2026 (2607.16072), code hhhhhh-925/copy-2dRoPE, in which the factor 2 is a key.
    """

    shift_invariant = True
    axes = 2

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Literal["interleaved", "half"],
        auto: bool,
    ) -> None:
        super().__init__()
        if dims.head_dim % 4:
            raise ValueError(
                f"{dims.head_width_reason}, but rows and columns need half of the pairs each: "
                "choose a width that 4 divides"
            )
        self.halves = pairing == "half"
        self.reads_positions = None if auto else float
        self.step = nn.Linear(dims.d_model, 2) if auto else None
        if self.step is not None:
            nn.init.zeros_(self.step.weight)
            nn.init.zeros_(self.step.bias)
        self.frequencies = nn.Buffer(frequencies(dims.head_dim // 2, base), persistent=False)

    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        row_BS, column_BS = self.rows_and_columns(inputs)
        theta = self.frequencies.to(row_BS.dtype) if self.step is not None else self.frequencies
        angle = torch.cat((row_BS[..., None] * theta, column_BS[..., None] * theta), -1)[:, None]
        return rotate_queries_and_keys(q_BHTD, k_BHSD, unit(angle), self.halves)

    def rows_and_columns(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        """Each (1 or B, S)."""
        pos = inputs.pos_k_BS
        if self.step is None:
            return (pos[..., 0], pos[..., 1]) if pos.dim() == 3 else (torch.zeros_like(pos), pos)
        a_BS, b_BS = (2 * widened(self.step(inputs.x_BSE)).sigmoid()).unbind(-1)
        # A token's place follows from the tokens before it.
        row_BS = F.pad((1 - a_BS).cumsum(1)[:, :-1], (1, 0))
        return row_BS, F.pad(affine_scan(a_BS, b_BS)[:, :-1], (1, 0))


def affine_scan(a_BS: Tensor, b_BS: Tensor) -> Tensor:
    """y_t = a_t y_(t-1) + b_t from y_(-1) = 0, (B, S), in log2 S steps."""
    step = 1
    while step < a_BS.shape[1]:
        # The maps of 2 step tokens, each after that of the step tokens before.
        b_BS = b_BS + a_BS * F.pad(b_BS[:, :-step], (step, 0))
        a_BS = a_BS * F.pad(a_BS[:, :-step], (step, 0), value=1.0)
        step *= 2
    return b_BS
