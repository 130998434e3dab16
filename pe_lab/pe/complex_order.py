"""Complex word embeddings, rotated by their position."""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.functional import frequencies


class ComplexOrder(PositionalEncoding):
    """Complex token embeddings, rotated by the position, with separate frequencies for each token.

    Feature j of token w at position i is r_wj exp(i' (f_wj i + phi_wj)), i' the imaginary unit,
    j < E/2; the real parts and then the imaginary ones make up the width E. The halves of the
    token embedding are r cos(phi) and r sin(phi): amplitude and phase are looked up by the
    token as the paper has it, and only f needs a table, (vocabulary, E/2). Source: Wang 2020
    (1912.12333). The published code leaves the phase out (``phase: zero``): then the first
    half of the token embedding is r and the second is not read.

    f starts at base^(-2 floor(j/2) / (E/2)) for every token, base 10000, as published. The
    transformer behind it stays real, where the paper's is complex. Any length. Absolute; causal.
    """

    any_order = True

    def __init__(self, dims: Dims, base: PositiveFloat, phase: Literal["token", "zero"]) -> None:
        super().__init__()
        if dims.d_model % 2:
            raise ValueError(
                f"model.d_model={dims.d_model} is odd, but half of it holds real parts, half "
                "imaginary ones: set model.d_model to an even number"
            )
        width = dims.d_model // 2
        self.phase = phase
        row = frequencies(width, base).repeat_interleave(2)[:width].to(torch.get_default_dtype())
        self.frequencies = nn.Parameter(row.repeat(dims.vocab_size, 1))

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        # In float32 an angle of some thousand radians keeps three decimals.
        angle = F.embedding(tokens_BS, self.frequencies).double() * pos_BS[..., None]
        cos, sin = angle.cos().to(x_BSE.dtype), angle.sin().to(x_BSE.dtype)
        real, imaginary = x_BSE.chunk(2, -1)
        if self.phase == "zero":
            return torch.cat((real * cos, real * sin), -1)
        return torch.cat((real * cos - imaginary * sin, real * sin + imaginary * cos), -1)
