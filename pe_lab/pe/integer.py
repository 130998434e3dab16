import math

import torch
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding


class Integer(PositionalEncoding):
    """The raw position as one scalar feature, projected and added to the token embeddings.

        x_i + i weight                                           weight (E,)

    A baseline for teaching, in no paper. i grows without bound, so far positions drown the tokens,
    on purpose. There is no bias: it would be one vector added to every token. ``weight`` starts as
    a column of nn.Linear(E + 1, E) does, uniform in +-1/sqrt(E + 1). From +-1, 60 tokens would
    drown at once and nothing would be learned. Any length. Absolute; causal.
    """

    reads_positions = float

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        bound = 1 / math.sqrt(dims.d_model + 1)
        self.weight = nn.Parameter(torch.empty(dims.d_model).uniform_(-bound, bound))

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        return x_BSE + pos_BS[..., None] * self.weight
