from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding, by_distance
from pe_lab.pe.functional import distances


class KERPLE(PositionalEncoding):
    """Penalty on the logits, logarithmic in the distance or a power of it, learned per head.

        form: log      bias[h, i, j] = -r1[h] log(1 + r2[h] (i - j))       r1, r2 > 0
        form: power    bias[h, i, j] = -r1[h] (i - j)^r2[h]                r1 > 0, 0 < r2 < 2

    r1 = softplus(raw_r1), and r2 = softplus(raw_r2) or 2 sigmoid(raw_r2), each (H,). All layers
    share them; ``share_layers: false`` gives each its own. Any length. Not absolute; causal.

    Source: Chi 2022 (2205.09921). As in the authors' code, r1 starts uniform in (0, 2) and r2 in
    (0, 1) for ``log``, in (0, 1) and (0, 2) for ``power``, none below 0.01. That code clamps them
    at each step; softplus and sigmoid keep the same bounds without a dead end.
    """

    shift_invariant = True
    reads_positions = float

    def __init__(self, dims: Dims, form: Literal["log", "power"], share_layers: bool) -> None:
        super().__init__()
        self.form, self.share_layers = form, share_layers
        at_first_r1 = (torch.rand(dims.n_heads) * (2 if form == "log" else 1)).clamp(min=0.01)
        at_first_r2 = torch.rand(dims.n_heads) * (1 if form == "log" else 2)
        at_first_r2 = at_first_r2.clamp(0.01, 1.99)
        self.raw_r1 = nn.Parameter(at_first_r1.expm1().log())
        self.raw_r2 = nn.Parameter(
            at_first_r2.expm1().log() if form == "log" else (at_first_r2 / 2).logit()
        )

    @by_distance
    def bias(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor:
        r1 = F.softplus(self.raw_r1)[:, None, None]
        far = distances(pos_q_BT, pos_k_BS)[:, None].to(r1.dtype)
        if self.form == "log":
            return -r1 * (F.softplus(self.raw_r2)[:, None, None] * far).log1p()
        return -r1 * far ** (2 * self.raw_r2.sigmoid()[:, None, None])
