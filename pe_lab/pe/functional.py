"""What several encodings share: maths of positions, and the refusal of keys that do not fit.

Shape letters as in base.py; R table rows.
"""

import functools
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

Fact = TypeVar("Fact")


def once_for_all_layers(fact: Callable[[Tensor], Fact]) -> Callable[[Tensor], Fact]:
    """Caches a function of positions as an attribute of the tensor: all layers of a model read the
    same tensor, and reading a number from a GPU waits for all of its pending work."""
    name = f"_{fact.__name__}"

    @functools.wraps(fact)
    def cached(pos_BS: Tensor) -> Fact:
        version = _version(pos_BS)
        found: tuple[int, Fact] | None = getattr(pos_BS, name, None)
        if found is None or found[0] != version:
            found = version, fact(pos_BS)
            setattr(pos_BS, name, found)
        return found[1]

    return cached


def _version(tensor: Tensor) -> int:
    # Inference tensors have no version counter.
    return 0 if tensor.is_inference() else tensor._version


@once_for_all_layers
def consecutive(pos_BS: Tensor) -> bool:
    """Whether the positions of every sequence go up by one, so that i - j is that of the places."""
    return bool((pos_BS.diff(dim=-1) == 1).all())


@once_for_all_layers
def span(pos_BS: Tensor) -> int:
    """How far apart two positions of a sequence are at most."""
    return int((pos_BS.amax(-1) - pos_BS.amin(-1)).max())


def refuse_where(*cases: tuple[bool, str]) -> None:
    """ValueError with the sentence of the first case that is true: keys that do not fit."""
    for found, why in cases:
        if found:
            raise ValueError(why)


def distances(pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor:
    """i - j for every query and key, (B, T, S); 0 where the key is ahead (masked anyway)."""
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
