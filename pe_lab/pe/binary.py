import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.functional import look_up


class Binary(PositionalEncoding):
    """The position's bits as features 0 and 1, projected and added to the token embeddings.

        x_i + sum over n of bit_n(i) weight[n]         weight (bits, E), bit 0 the lowest

    A baseline for teaching, in no paper. Positions are bounded and unique, but neighbours may
    differ in many bits: 7 and 8 differ in four. There is no bias: position 0 adds nothing.
    ``weight`` starts as nn.Linear(bits, E) does, uniform in +-1/sqrt(bits). A position past 2^bits
    is an error. Absolute; causal.
    """

    def __init__(self, dims: Dims, bits: Annotated[int, Field(ge=1, le=62)] | None) -> None:
        super().__init__()
        self.bits = max(1, (dims.max_len - 1).bit_length()) if bits is None else bits
        self.max_len = 2**self.bits
        bound = 1 / math.sqrt(self.bits)
        self.weight = nn.Parameter(torch.empty(self.bits, dims.d_model).uniform_(-bound, bound))
        self.place = nn.Buffer(torch.arange(self.bits), persistent=False)
        self.digit = nn.Buffer(torch.tensor([0.0, 1.0]), persistent=False)

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        shifted_BSN = pos_BS[..., None] >> self.place
        # The highest digit keeps what lies above it: past 2^bits and below 0 it is neither 0 nor 1,
        # and the look-up fails.
        digits_BSN = torch.cat((shifted_BSN[..., :-1] & 1, shifted_BSN[..., -1:]), -1)
        return (
            x_BSE + look_up(digits_BSN, self.digit[:, None].to(self.weight))[..., 0] @ self.weight
        )
