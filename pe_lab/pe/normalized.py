from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.functional import look_up


class Normalized(PositionalEncoding):
    """The position as a share of the length in [0, 1], projected and added to the embeddings.

        x_i + i / (max_len - 1) weight                           weight (E,)

    A baseline for teaching, in no paper: the step between neighbours depends on the length. There
    is no bias: it would be one vector added to every token. ``weight`` starts as nn.Linear(1, E)
    does, uniform in +-1. A position past ``max_len`` is an error. Absolute; causal.

    ``scale: sequence`` divides by the sequence's last position instead, padding counted, at any
    length. Every token then depends on the length of the sequence, so a key cache is refused.
    """

    def __init__(
        self, dims: Dims, scale: Literal["max_len", "sequence"], max_len: PositiveInt | None
    ) -> None:
        super().__init__()
        self.whole_sequence = scale == "sequence"
        shares = None
        if not self.whole_sequence:
            self.max_len = dims.max_len if max_len is None else max_len
            share = torch.arange(self.max_len, dtype=torch.float64) / max(self.max_len - 1, 1)
            shares = nn.Buffer(share, persistent=False)
        self.shares = shares
        self.weight = nn.Parameter(torch.empty(dims.d_model).uniform_(-1, 1))

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        if self.shares is None:
            share_BS = pos_BS.double() / pos_BS[:, -1:].clamp(min=1)
        else:
            share_BS = look_up(pos_BS, self.shares[:, None])[..., 0]
        return x_BSE + (share_BS[..., None] * self.weight).to(x_BSE.dtype)
