import torch
from pydantic import PositiveFloat
from torch import Tensor

from pe_lab.pe.base import Dims
from pe_lab.pe.rope import LogN, Pairing, Scale, StretchedRoPE


class NTKFixed(StretchedRoPE):
    """RoPE written in a larger radix: every pair is interpolated, the slower the more.

        frequencies[m] = 1 / (lam (beta lam)^m),   m = 0 .. D/2 - 1
        beta = base^(2/D),   lam = k^(2/D)

    The fastest pair rotates k^(2/D) times slower, the slowest k times. A change to a trained
    ``rope`` at test time. ``k: null`` is the longest length over the trained one, so 1, plain RoPE,
    at the trained length. ``logn`` as in ``rope``. No parameters, any length. Not absolute; causal.

    Source: Su's blog, 9706 (2023).
    """

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        k: Scale | None,
        logn: LogN,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, k, logn, logn_clip)

    def stretched(self, frequencies_M: Tensor) -> Tensor:
        pairs = len(frequencies_M)
        pair = torch.arange(1, pairs + 1, dtype=torch.float64)
        return frequencies_M / self.k ** (pair / pairs)
