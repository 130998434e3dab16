"""Stateless maths that several encodings share. Shape letters as in base.py; R table rows."""

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Fact = TypeVar("Fact")


def once_for_all_layers(fact: Callable[[Tensor], Fact]) -> Callable[[Tensor], Fact]:
    """Keeps the fact of the last positions it was asked about: the layers of a model ask about one
    tensor, and to read a number from a GPU is to wait for all that the GPU has been given to do."""
    last: tuple[weakref.ref[Tensor], int, Fact] | None = None

    @functools.wraps(fact)
    def known(pos_BS: Tensor) -> Fact:
        nonlocal last
        version = _version(pos_BS)
        if last is not None and last[0]() is pos_BS and last[1] == version:
            return last[2]
        found = fact(pos_BS)
        last = weakref.ref(pos_BS), version, found
        return found

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


_turning: tuple[weakref.ref[Tensor], tuple[Any, ...], Tensor, Tensor] | None = None


def turning(pos_BT: Tensor, frequencies_M: Tensor) -> Tensor:
    """How pairs of these frequencies turn at these positions, (B, 1, T, M), complex.

    Sines and cosines of a whole context are dear where one token is decoded. So in inference on a
    CPU the last ones of several tokens are kept: for other layers, which ask about the same
    positions, for the query, whose is the last, and for the next token, which adds one.
    """
    global _turning
    if not (torch.is_inference_mode_enabled() and pos_BT.is_cpu):
        return _turns(pos_BT, frequencies_M)
    told = (*frequencies_M.tolist(), _version(pos_BT))
    known = None if _turning is None or _turning[1] != told else _turning
    if known is not None and known[0]() is pos_BT:
        return known[3]
    if pos_BT.shape[-1] < 2:
        if known is not None and torch.equal(known[2][:, -1:], pos_BT):
            return known[3][:, :, -1:]
        return _turns(pos_BT, frequencies_M)
    if known is not None and torch.equal(known[2], pos_BT[:, :-1]):
        found = torch.cat([known[3], _turns(pos_BT[:, -1:], frequencies_M)], 2)
    else:
        found = _turns(pos_BT, frequencies_M)
    _turning = weakref.ref(pos_BT), told, pos_BT.clone(), found
    return found


def _turns(pos_BT: Tensor, frequencies_M: Tensor) -> Tensor:
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
