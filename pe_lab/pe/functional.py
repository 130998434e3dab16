"""Stateless maths that several encodings share. Shape letters as in base.py; R table rows."""

import functools
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

Fact = TypeVar("Fact")


def once_for_all_layers(fact: Callable[[Tensor], Fact]) -> Callable[[Tensor], Fact]:
    """Keeps a fact of positions with them, as an attribute: the layers of a model ask about one
    tensor, and to read a number from a GPU is to wait for all that the GPU has been given to do."""
    name = f"_{fact.__name__}"

    @functools.wraps(fact)
    def known(pos_BS: Tensor) -> Fact:
        version = _version(pos_BS)
        kept: tuple[int, Fact] | None = getattr(pos_BS, name, None)
        if kept is None or kept[0] != version:
            kept = version, fact(pos_BS)
            setattr(pos_BS, name, kept)
        return kept[1]

    return known


def _version(tensor: Tensor) -> int:
    # What inference mode makes does not count its changes.
    return 0 if tensor.is_inference() else tensor._version


@once_for_all_layers
def consecutive(pos_BS: Tensor) -> bool:
    """Whether the positions of every sequence go up by one, so that i - j is that of the places."""
    return bool((pos_BS.diff(dim=-1) == 1).all())


@once_for_all_layers
def span(pos_BS: Tensor) -> int:
    """How far apart two positions of a sequence are at most."""
    return int((pos_BS.amax(-1) - pos_BS.amin(-1)).max())


def turning(pos_BT: Tensor, frequencies_M: Tensor) -> Tensor:
    """How pairs of these frequencies turn at these positions, (B, 1, T, M), complex."""
    angle = (pos_BT[..., None] * frequencies_M)[:, None]
    return torch.polar(torch.ones_like(angle), angle)


def distances(pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor:
    """i - j for every query and key, (B, T, S); 0 where the key lies ahead (masked anyway)."""
    return (pos_q_BT[:, :, None] - pos_k_BS[:, None, :]).clamp(min=0)


def pick(scores_BHTR: Tensor, row_BTS: Tensor) -> Tensor:
    """scores[.., t, row[t, s]], (B, H, T, S): with scores = q @ table.T, q_i . table[row_ij].

    Scoring every row first costs T * R, where looking up vectors would cost T * S * D.
    """
    b, h, t, _ = scores_BHTR.shape
    return scores_BHTR.gather(-1, row_BTS[:, None].expand(b, h, t, -1))


def frequencies(width: int, base: float) -> Tensor:
    """base^(-2m/width) for the pair m, in float64: an angle of some thousand radians needs it."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def alibi_slopes(n_heads: int) -> list[float]:
    """Press's m_h: 2^(-8h/H), h = 1..H; else those of the power of two below H, and then every
    second one of the power of two above it."""
    below = 2 ** (n_heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    between = [2 ** (-4 * h / below) for h in range(1, 2 * below + 1, 2)]
    return slopes + between[: n_heads - below]
