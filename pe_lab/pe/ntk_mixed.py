import math

import torch
from pydantic import PositiveFloat

from pe_lab.pe.base import Dims
from pe_lab.pe.rope import LogN, Pairing, Scale, StretchedRoPE


class NTKMixed(StretchedRoPE):
    """RoPE whose pairs are interpolated by exp(a m^b): b < 1 leaves more of it to the slow pairs.

        frequencies[m-1] = 1 / (base^(2 (m-1) / D) exp(a m^b)),   m = 1 .. D/2
        a (D/2)^b        = ln k

    The slowest pair rotates k times slower. ``b: 1`` is ``ntk_fixed``, ``b: 0`` would be ``pi``;
    the source finds 0.625 best. A change to a trained ``rope`` at test time. ``k: null`` is the
    longest length over the trained one, so 1, plain RoPE, at the trained length. ``logn`` as in
    ``rope``. No parameters, any length. Not absolute; causal.

    Source: Su's blog, 9706 (2023).
    """

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        b: PositiveFloat,
        k: Scale | None,
        logn: LogN,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, k, logn, logn_clip)
        pairs = dims.head_dim // 2
        share = torch.arange(1, pairs + 1, dtype=torch.float64) / pairs
        self.frequencies = self.frequencies * (-math.log(self.k) * share**b).exp()
