from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from pe_lab.pe.base import Dims
from pe_lab.pe.near_far import NearFar
from pe_lab.pe.rope import LogN, Pairing, Scale, scale


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

    filled = ("k",)

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

    def far_factors(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        shifted_BT = pos_q_BT.double() + self.near * (self.k - 1)
        return self.factors(shifted_BT / self.k), self.factors(pos_k_BS.double() / self.k)
