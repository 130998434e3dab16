"""Rectified RoPE with a leak."""

from typing import Any

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from pe_lab.pe.base import Dims
from pe_lab.pe.near_far import NearFar
from pe_lab.pe.rope import LogN, Pairing, Scale, scale


class LeakyReRoPE(NearFar):
    """RoPE whose distance grows k times more slowly from w on.

    The logits are RoPE's at the distance i - j where that is below w, and at w + (i - j - w) / k
    elsewhere: q_i rotated by (i + w (k - 1)) / k times k_j rotated by j / k. A change to a trained
    ``rope``, made at test time. Source: Su's blog, 9708 (2023), and the author's code.
    ``window: null`` is half of the trained length, as ``rerope``, which is the limit of a large
    k; ``k: null`` is the longest length over the trained one, and 1, plain RoPE, at the trained
    length. With that k the farthest distances still pass the trained ones: Su's blog, 9728
    (2023) advises a k for which the farthest is at most half of the trained length, and a window
    of a quarter to a half. ``logn`` as in ``rope``. No parameters, any length. Not absolute;
    causal.
    """

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        window: PositiveInt | None,
        k: Scale | None,
        logn: LogN,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, window, logn, logn_clip)
        self.k = scale(dims, k)

    def null_values(self) -> dict[str, Any]:
        return super().null_values() | {"k": self.k}

    def far_factors(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        shifted_BT = pos_q_BT.double() + self.near * (self.k - 1)
        return self.factors(shifted_BT / self.k), self.factors(pos_k_BS.double() / self.k)
