"""Which pairs of RoPE rotate, and how fast."""

import math
from typing import Literal

import torch
from torch import Tensor

from pe_lab.pe.base import Dims
from pe_lab.pe.functional import frequencies

Drop = Literal["low", "high"]
Clip = Literal["hard", "soft"]


def rope_frequencies(
    dims: Dims, base: float, fraction: float, drop: Drop | None, clip: Clip | None
) -> Tensor:
    """The frequencies of the D/2 pairs, (D/2,); 0: a pair does not rotate.

    Raises:
        ValueError: a key has no effect beside the others, or no pair is left.
    """
    pairs = dims.head_dim // 2
    rotated = math.floor(fraction * pairs)
    if fraction == 1 and drop is not None:
        raise ValueError(
            f"drop={drop} has no effect with fraction=1, which drops no pair: set fraction below "
            "1, or drop=null"
        )
    if not rotated:
        raise ValueError(
            f"fraction={fraction:g} of {pairs} pairs leaves none that rotates: set fraction to "
            f"{1 / pairs:.3g} or more, or pe=none"
        )
    if base <= 1 and (drop or clip):
        key = f"drop={drop}" if drop else f"clip={clip}"
        raise ValueError(
            f"base={base:g} rotates no pair more slowly than another, which {key} needs: set base "
            "above 1"
        )
    if drop is None:
        theta = torch.zeros(pairs, dtype=torch.float64)
        theta[:rotated] = frequencies(2 * rotated, base)
    else:
        theta = frequencies(dims.head_dim, base)
        theta[slice(rotated, None) if drop == "low" else slice(pairs - rotated)] = 0
    return theta if clip is None else _clipped(theta, clip, dims.train_len)


def _clipped(theta_M: Tensor, clip: Clip, train_len: int) -> Tensor:
    slow = (theta_M < 2 * math.pi / train_len) & (theta_M > 0)
    n = int(slow.sum())
    if not n:
        raise ValueError(
            f"clip={clip} has no effect, every pair rotates at least once within the trained "
            f"length of {train_len}: set clip=null"
        )
    if clip == "hard" and n == int((theta_M > 0).sum()):
        raise ValueError(
            f"clip=hard leaves no pair that rotates, as none does so once within the trained "
            f"length of {train_len}: set clip=null or train on longer sequences"
        )
    kept = torch.zeros(n, dtype=torch.float64)
    if clip == "soft":
        kept = (1 + torch.linspace(0, math.pi, n, dtype=torch.float64).cos()) / 2
    return theta_M.masked_scatter(slow, theta_M[slow] * kept)
