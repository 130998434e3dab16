"""Rectified RoPE."""

import torch
from torch import Tensor

from pe_lab.pe.near_far import NearFar


class ReRoPE(NearFar):
    """RoPE whose distance stops growing at w: no distance is larger than one seen in training.

    The logits are RoPE's at the distance min(i - j, w): where i - j >= w, q_i rotated by w is
    multiplied with the unrotated key. A change to a trained ``rope``, made at test time. Source:
    Su's blog, 9708 (2023), and the author's code. ``window: null`` is half of the trained length,
    with which the source's model does best without ``logn``; it finds a quarter to a half good.
    ``logn`` as in ``rope``. Two score matrices, each computed once and, in blocks, only where it is
    used; keys are cached before rotation. No parameters, any length. Not absolute; causal.
    """

    def far_factors(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.factors(torch.full_like(pos_q_BT[:, :1], self.near)), None
