import torch
from torch import Tensor

from pe_lab.pe.near_far import NearFar


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
