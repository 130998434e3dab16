"""The raw position as one more feature."""

import math

import torch
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding


class Integer(PositionalEncoding):
    """The raw position as one scalar feature, projected and added to the token embeddings.

    x_i + i w, w (E,). A baseline for teaching, in no paper: i grows without bound, so positions
    far out drown the tokens, and that is left so on purpose. No bias: it would be one vector
    added to every token, whatever its position. The position counts as a feature beside the E of
    the token: w starts as a column of nn.Linear(E + 1, E) does, uniform in +-1/sqrt(E + 1); from
    +-1, the column of nn.Linear(1, E), 60 tokens drown at once and nothing is learned. Any
    length. Absolute; causal.
    """

    any_order = True

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        bound = 1 / math.sqrt(dims.d_model + 1)
        self.weight = nn.Parameter(torch.empty(dims.d_model).uniform_(-bound, bound))

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        return x_BSE + pos_BS[..., None] * self.weight
