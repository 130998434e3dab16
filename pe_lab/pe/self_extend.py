from typing import Literal

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from pe_lab.pe.base import Dims
from pe_lab.pe.near_far import NearFar
from pe_lab.pe.rope import LogN, Pairing


class SelfExtend(NearFar):
    """RoPE near, and far away RoPE of groups of positions.

        logits[i, j] = RoPE's                                             i - j < window
        elsewhere q_i is rotated by floor(i / group) + window - floor(window / group),
        k_j by floor(j / group)

    A change to a trained ``rope`` at test time. ``window: null`` is a quarter of the trained
    length, as the paper's 1024 of 4096. ``group: null`` is the smallest with (train length -
    window) group + window at least the longest length, so 1, plain RoPE, at the trained length.
    ``shift: exact`` shifts far queries by window - window / group, as the authors' code; the paper
    floors it. ``logn`` as in ``rope``. No parameters, any length. Absolute, as groups begin at
    multiples of ``group``; causal.

    Source: Jin 2024 (2401.01325) and the authors' code.
    """

    filled = ("group",)
    divisor = 4

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        window: PositiveInt | None,
        group: PositiveInt | None,
        shift: Literal["floored", "exact"],
        logn: LogN,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, window, logn, logn_clip)
        self.fractional = False
        self.group = smallest_group(dims, self.near) if group is None else group
        whole = self.near // self.group
        self.shift = self.near - (whole if shift == "floored" else self.near / self.group)
        # With group 1 each position is a group; with the largest one all are in a single group.
        self.shift_invariant &= self.group == 1 or self.group >= dims.max_len

    def far_factors(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        far_q = (pos_q_BT // self.group).double() + self.shift
        return self.factors(far_q), self.factors(pos_k_BS // self.group)


def smallest_group(dims: Dims, window: int) -> int:
    """With which the longest sequence is within reach."""
    if dims.longest <= max(window, dims.train_len):
        return 1
    if window >= dims.train_len:
        raise ValueError(
            f"window={window} leaves no group large enough, as the trained length is "
            f"{dims.train_len}: set window below it, or group to a number"
        )
    return -(-(dims.longest - window) // (dims.train_len - window))
