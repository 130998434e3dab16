import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding, by_distance
from pe_lab.pe.functional import frequencies


class Sandwich(PositionalEncoding):
    """Bias on the logits: the inner product of two sinusoidal embeddings, weaker head by head.

        bias[h, i, j] = H / (8 h) sum over m of cos((i - j) frequencies[m]),   h = 1 .. H
        frequencies[m] = 10000^(-2m/dim),   m = 0 .. dim/2 - 1

    The decay is about logarithmic. No parameters, any length. Not absolute; causal (the sum is even
    in i - j).

    Source: Chi 2023 (2212.10356), whose appendix gives the factor H / (8 h) and dim = 128.
    """

    shift_invariant = True
    reads_positions = float

    def __init__(self, dims: Dims, dim: PositiveInt) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"dim={dim} is odd, but sines and cosines come in pairs: set it even")
        heads = torch.arange(1, dims.n_heads + 1)
        self.frequencies = nn.Buffer(frequencies(dim, 10000), persistent=False)
        self.ratio = nn.Buffer(dims.n_heads / (8 * heads), persistent=False)

    @by_distance
    def bias(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor | None:
        # cos(a - b) = cos a cos b + sin a sin b: no (T, S, D') tensor.
        summed_BTS = self._waves(pos_q_BT) @ self._waves(pos_k_BS).transpose(-1, -2)
        return summed_BTS.to(self.ratio.dtype)[:, None] * self.ratio[:, None, None]

    def _waves(self, pos_BT: Tensor) -> Tensor:
        angle = pos_BT[..., None] * self.frequencies
        return torch.cat((angle.cos(), angle.sin()), -1)
