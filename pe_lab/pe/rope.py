"""Rotary position embedding."""

from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from pe_lab.pe.base import Dims, PositionalEncoding, Scene
from pe_lab.pe.functional import frequencies


class RoPE(PositionalEncoding):
    """Queries and keys, rotated pair by pair by angles that grow with the position.

    The pair m of q_i and k_i turns by i base^(-2m/D), m = 0..D/2-1, so that q_i . k_j depends
    on i - j. Source: Su 2021 (2104.09864). ``pairing: interleaved`` pairs features 2m and
    2m + 1, as the paper and GPT-J; ``half`` pairs m and m + D/2, as GPT-NeoX and LLaMA: the
    same encoding with the features in another order. No parameters, any length. Not absolute;
    causal.
    """

    shift_invariant = True
    frequencies: Tensor

    def __init__(
        self, dims: Dims, base: PositiveFloat, pairing: Literal["interleaved", "half"]
    ) -> None:
        super().__init__()
        check_pairs(dims)
        self.pairing = pairing
        self.register_buffer("frequencies", frequencies(dims.head_dim, base), persistent=False)

    def rotate(self, q_BHTD: Tensor, k_BHSD: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
        pos_q, pos_k = scene.pos_q_BT, scene.pos_k_BS
        turn_k = self.turns(pos_k)
        turn_q = turn_k if pos_q is pos_k else self.turns(pos_q)
        return self.turned(q_BHTD, turn_q), self.turned(k_BHSD, turn_k)

    def turns(self, pos_BT: Tensor) -> Tensor:
        """How the pairs turn at these positions, (B, 1, T, D/2), complex."""
        angle = (pos_BT[..., None] * self.frequencies)[:, None]
        return torch.polar(torch.ones_like(angle), angle)

    def turned(self, x_BHTD: Tensor, turn: Tensor) -> Tensor:
        """Queries or keys after ``turns``."""
        if self.pairing == "half":
            return turn_halves(x_BHTD, turn.real, turn.imag)
        return turn_neighbours(x_BHTD, turn)


def check_pairs(dims: Dims) -> None:
    """Heads of an odd width leave a feature without a partner."""
    if dims.head_dim % 2:
        raise ValueError(
            f"d_model={dims.d_model} and n_heads={dims.n_heads} give heads of width "
            f"{dims.head_dim}, but rotation needs pairs: choose an even d_model / n_heads"
        )


def turn_halves(x_BHTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate features m and m + D/2 by the angle with cos[.., m] and sin[.., m]."""
    wide = torch.promote_types(x_BHTD.dtype, torch.float32)
    cos, sin = cos.to(wide), sin.to(wide)
    a, b = x_BHTD.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x_BHTD.dtype)


def turn_neighbours(x_BHTD: Tensor, turn: Tensor) -> Tensor:
    """Multiply features 2m and 2m + 1, read as one complex number, by the complex turn[.., m]."""
    wide = torch.promote_types(x_BHTD.dtype, torch.float32)
    # Complex numbers take a third of the time of strided halves.
    pairs = torch.view_as_complex(x_BHTD.to(wide).reshape(*x_BHTD.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn.to(wide.to_complex())).flatten(-2).to(x_BHTD.dtype)
