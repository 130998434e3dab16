from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.functional import frequencies


class ComplexOrder(PositionalEncoding):
    """Complex token embeddings, rotated by the position, with separate frequencies for each token.

        z_ij = r_wj exp(sqrt(-1) (frequencies[w, j] i + phi_wj))     w the token at i, j < E/2
        x_i  = [Re z_i, Im z_i]                                      (E,)

    The halves of the token embedding are r cos(phi) and r sin(phi). So only the frequencies need a
    table, (vocabulary, E/2). They start at base^(-2 floor(j/2) / (E/2)) for every token, as
    published. ``phase: zero`` leaves the phase out, as the published code does: the first half of
    the token embedding is then r, and the second is not read.

    The transformer behind it stays real, where the paper's is complex. Any length. Absolute;
    causal.

    Source: Wang 2020 (1912.12333).
    """

    reads_positions = float

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
