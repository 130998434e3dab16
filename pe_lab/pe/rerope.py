"""RoPE for near keys, other rotations for far ones: changes of a trained RoPE at test time."""

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from pe_lab.pe.base import AttentionInputs, Dims, replaces_content
from pe_lab.pe.functional import distances, rotate_pairs
from pe_lab.pe.rope import LogNMode, Pairing, RoPE, Scale, stretch_factor


class NearFar(RoPE):
    """RoPE for near keys, other rotations for far ones.

        logits[i, j] = RoPE's                                          i - j < near
        logits[i, j] = (far_q_i q_i) . (far_k_j k_j) / sqrt(D)         elsewhere

    Subclasses compute ``far_q`` and ``far_k`` in ``far_factors``. ``window`` is ``near``; null: the
    trained length divided by ``divisor``.
    """

    at_test_time = True
    divisor: ClassVar[int] = 2

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        window: PositiveInt | None,
        logn: LogNMode,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, logn, logn_clip)
        self.near = max(1, dims.train_len // self.divisor) if window is None else window

    def null_values(self) -> dict[str, Any]:
        return super().null_values() | {"window": self.near}

    @abstractmethod
    def far_factors(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        """The complex factors of far queries and keys, see ``factors``; None: keys stay as they
        are."""

    @replaces_content
    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        factor_q, factor_k = self.far_factors(inputs.pos_q_BT, inputs.pos_k_BS)
        factor_q = self.scale_queries(factor_q, inputs.pos_q_BT)
        far_q, far_k = rotate_pairs(inputs.q_BHTD, factor_q, self.halves), inputs.k_BHSD
        if factor_k is not None:
            far_k = rotate_pairs(far_k, factor_k, self.halves)
        far_BHTS = (far_q * far_q.shape[-1] ** -0.5) @ far_k.transpose(-1, -2)
        near_BTS = distances(inputs.pos_q_BT, inputs.pos_k_BS) < self.near
        return torch.where(near_BTS[:, None], content_BHTS, far_BHTS)


class ReRoPE(NearFar):
    """RoPE whose distance stops growing at the window: none is larger than one seen in training.

        logits[i, j] = RoPE's at the distance min(i - j, window)

    For i - j >= window the query, rotated by window, is multiplied with the unrotated key. A change
    to a trained ``rope`` at test time. ``window: null`` is half of the trained length, best in the
    source without ``logn``; it finds a quarter to a half good. ``logn`` as in ``rope``. Keys are
    cached before rotation. No parameters, any length. Not absolute; causal.

    Source: Su's blog, 9708 (2023), and the author's code.
    """

    def far_factors(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.factors(torch.full_like(pos_q_BT[:, :1], self.near)), None


class LeakyReRoPE(NearFar):
    """RoPE whose distance grows k times more slowly from the window on.

        logits[i, j] = RoPE's at the distance i - j                          i - j < window
        logits[i, j] = RoPE's at window + (i - j - window) / k               elsewhere

    Far queries are rotated by (i + window (k - 1)) / k, far keys by j / k. A change to a trained
    ``rope`` at test time. ``window: null`` is half of the trained length. ``k: null`` is the
    longest length over the trained one, so 1, plain RoPE, at the trained length. A large k gives
    ``rerope``. ``logn`` as in ``rope``. No parameters, any length. Not absolute; causal.

    With k null the farthest distances still pass the trained ones. Su's blog, 9728 (2023), advises
    a k for which they are at most half of the trained length, and a window of a quarter to a half.

    Source: Su's blog, 9708 (2023), and the author's code.
    """

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        window: PositiveInt | None,
        k: Scale | None,
        logn: LogNMode,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, window, logn, logn_clip)
        self.k = stretch_factor(dims, k)

    def far_factors(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        shifted_BT = pos_q_BT.double() + self.near * (self.k - 1)
        return self.factors(shifted_BT / self.k), self.factors(pos_k_BS.double() / self.k)


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

    divisor = 4

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        window: PositiveInt | None,
        group: PositiveInt | None,
        shift: Literal["floored", "exact"],
        logn: LogNMode,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, window, logn, logn_clip)
        self.reads_positions = int
        self.group = smallest_group(dims, self.near) if group is None else group
        whole = self.near // self.group
        self.shift = self.near - (whole if shift == "floored" else self.near / self.group)
        # With group 1 each position is a group; with the largest one all are in a single group.
        self.shift_invariant &= self.group == 1 or self.group >= dims.max_len

    def far_factors(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        far_q = (pos_q_BT // self.group).double() + self.shift
        return self.factors(far_q), self.factors(pos_k_BS // self.group)


def smallest_group(dims: Dims, window: int) -> int:
    """Return the smallest group with which the longest sequence is within reach."""
    if dims.longest <= max(window, dims.train_len):
        return 1
    if window >= dims.train_len:
        raise ValueError(
            f"window={window} leaves no group large enough, as the trained length is "
            f"{dims.train_len}: set window below it, or group to a number"
        )
    return -(-(dims.longest - window) // (dims.train_len - window))
