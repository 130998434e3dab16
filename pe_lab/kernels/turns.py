"""By what pairs of features of queries and keys are turned."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pe_lab.common.tracing import tracing


@dataclass(frozen=True)
class Turns:
    """
    Args:
        q, k: complex, (1 or B, 1 or H, T or S, D/2).
        halves: pairs are the features m and m + D/2, else 2m and 2m + 1.
    """

    q: Tensor
    k: Tensor
    halves: bool


def real(turn: Tensor, halves: bool) -> Tensor:
    """(.., D) real numbers of (.., D/2) complex ones, as turn.h reads them."""
    if halves:
        return torch.cat((turn.real, turn.imag), -1)
    return torch.view_as_real(turn.contiguous()).flatten(-2)


def in_pytorch(x_BHTD: Tensor, turn: Tensor, halves: bool) -> Tensor:
    """Pairs of features, read as complex numbers, times ``turn``."""
    if halves:
        return in_halves(x_BHTD, turn.real, turn.imag)
    if tracing():
        # Compilers know no complex numbers.
        a, b = x_BHTD.reshape(*x_BHTD.shape[:-1], -1, 2).unbind(-1)
        cos, sin = turn.real, turn.imag
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    # Complex numbers take a third of the time of strided halves.
    pairs = torch.view_as_complex(x_BHTD.reshape(*x_BHTD.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(-2)


def in_halves(x_BHTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Features m and m + D/2 turned by the angle with cos[.., m] and sin[.., m], in PyTorch."""
    a, b = x_BHTD.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
