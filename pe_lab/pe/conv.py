from typing import Annotated

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding


class Conv(PositionalEncoding):
    """Causal depthwise convolution over time, zero padded, added to the token embeddings.

        x_i + b + sum over l of w_l * x_(i-l),   l = 0 .. kernel - 1,   x = 0 before the start

    The product is feature by feature. The first kernel - 1 tokens see the padding, which shows
    where the sequence begins. All tokens see the order of their neighbours. Positions are not read.
    Weights start as nn.Conv1d does, uniform in +-1/sqrt(kernel). Any length. Not absolute; causal.

    Source: Islam 2020 (2001.08248) for the padding, Chu 2021 (2102.10882) for the module (kernel 3,
    bias, residual). Theirs is two-dimensional and looks ahead.
    """

    shift_invariant = True
    reads_positions = None

    def __init__(self, dims: Dims, kernel: Annotated[int, Field(ge=2)]) -> None:
        super().__init__()
        check_taps(dims, "kernel", kernel)
        self.ahead = kernel - 1
        self.conv = nn.Conv1d(dims.d_model, dims.d_model, kernel, groups=dims.d_model)

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        if not x_BSE.numel():
            return x_BSE
        padded_BES = F.pad(x_BSE.transpose(1, 2), (self.ahead, 0))
        added: Tensor = self.conv(padded_BES.to(self.conv.weight.dtype))
        return x_BSE + added.transpose(1, 2)


def check_taps(dims: Dims, key: str, taps: int) -> None:
    """No token is as far back as the last taps of a filter that is longer than any sequence."""
    # 2 taps are the fewest that show an order, whatever the length.
    most = max(dims.max_len, 2)
    if taps > most:
        raise ValueError(
            f"{key}={taps} is more than the {most} positions that training and every split have: "
            f"set {key} to {most} or less"
        )
