import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.functional import frequencies


class Sinusoidal(PositionalEncoding):
    """Fixed sines and cosines of the position, added to the token embeddings.

        x_i[2m]     + sin(i frequencies[m])            frequencies[m] = base^(-2m/E)
        x_i[2m + 1] + cos(i frequencies[m])

    An odd width ends with a sine. No parameters, any length. Absolute; causal.

    Source: Vaswani 2017 (1706.03762).
    """

    reads_positions = float

    def __init__(self, dims: Dims, base: PositiveFloat) -> None:
        super().__init__()
        self.frequencies = nn.Buffer(frequencies(dims.d_model, base), persistent=False)

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        angle = pos_BS[..., None] * self.frequencies
        wave = torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[..., : x_BSE.shape[-1]]
        return x_BSE + wave.to(x_BSE.dtype)
