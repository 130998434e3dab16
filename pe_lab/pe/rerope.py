"""Rectified RoPE."""

from typing import Any

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from pe_lab.pe.base import Dims
from pe_lab.pe.near_far import NearFar
from pe_lab.pe.rope import LogN, Pairing


class ReRoPE(NearFar):
    """RoPE whose distance stops growing at w: no distance is larger than one seen in training.

    The logits are RoPE's at the distance min(i - j, w): where i - j >= w, q_i rotated by w meets
    the key as it is. A change to a trained ``rope``, made at test time. Source: Su's blog, 9708
    (2023), and the author's code. ``window: null`` is half of the trained length, with which the
    source's model does best without ``logn``; it finds a quarter to a half good. ``logn`` as in
    ``rope``. Two score matrices, each computed once and, in blocks, only where it is used; keys
    are kept in a cache before they turn. No parameters, any length. Not absolute; causal.
    """

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        window: PositiveInt | None,
        logn: LogN,
        logn_clip: bool | None,
    ) -> None:
        near = half(dims) if window is None else window
        super().__init__(dims, base, pairing, near, logn, logn_clip)

    def null_values(self) -> dict[str, Any]:
        return super().null_values() | {"window": self.near}

    def far_factors(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.factors(torch.full_like(pos_q_BT[:, :1], self.near)), None


def half(dims: Dims) -> int:
    """Of the trained length."""
    return max(1, dims.train_len // 2)
