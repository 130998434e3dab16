"""Rotation of pairs of features by complex numbers.

Shape letters as in base.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """The factors of queries and keys, each pair of features being read as a complex number.

    Args:
        q, k: complex, (1 or B, 1 or H, T or S, D/2).
        halves: pairs are the features m and m + D/2, else 2m and 2m + 1.
    """

    q: Tensor
    k: Tensor
    halves: bool


def rotate_pairs(x_BHTD: Tensor, factors: Tensor, halves: bool = False) -> Tensor:
    """Pairs of features, read as complex numbers, times ``factors``; in the type of x, but computed
    at least in float32.

    Args:
        factors, halves: as in ``Rotation``.
    """
    wide = torch.promote_types(x_BHTD.dtype, torch.float32)
    factors = factors.to(wide.to_complex())
    return multiply_pairs(x_BHTD.to(wide), factors, halves).to(x_BHTD.dtype)


def rotate_queries_and_keys(
    q_BHTD: Tensor, k_BHSD: Tensor, factors_k: Tensor, halves: bool = False
) -> tuple[Tensor, Tensor]:
    """``rotate_pairs`` of both by the factors of the keys, of which the queries are the last."""
    last = factors_k[:, :, -q_BHTD.shape[2] :]
    return rotate_pairs(q_BHTD, last, halves), rotate_pairs(k_BHSD, factors_k, halves)


def multiply_pairs(x_BHTD: Tensor, factors: Tensor, halves: bool) -> Tensor:
    """Pairs of features, read as complex numbers, times ``factors`` of the same precision."""
    if halves:
        return multiply_halves(x_BHTD, factors.real, factors.imag)
    pairs = torch.view_as_complex(x_BHTD.reshape(*x_BHTD.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * factors).flatten(-2)


def multiply_halves(x_BHTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Features m and m + D/2 rotated by the angle with cos[.., m] and sin[.., m]."""
    a, b = x_BHTD.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def rotate_halves(x_BHTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``multiply_halves`` in the type of x, but computed at least in float32."""
    wide = torch.promote_types(x_BHTD.dtype, torch.float32)
    return multiply_halves(x_BHTD, cos.to(wide), sin.to(wide)).to(x_BHTD.dtype)


def unit_factors(pos_BT: Tensor, frequencies_M: Tensor) -> Tensor:
    """exp(i position frequency), (B, 1, T, M), complex."""
    return unit((pos_BT[..., None] * frequencies_M)[:, None])


def unit(angle: Tensor) -> Tensor:
    """exp(i angle), complex."""
    return torch.polar(torch.ones_like(angle), angle)
