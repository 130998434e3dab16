"""NTK-RoPE, fixed."""

import torch
from torch import Tensor

from pe_lab.pe.rope import StretchedRoPE


class NTKFixed(StretchedRoPE):
    """RoPE written in a larger radix: every pair is interpolated, the slower the more.

    With beta = base^(2/D) and lam = k^(2/D), the pair m = 1..D/2 is rotated by i / (lam
    (beta lam)^(m-1)): k^(2/D) times slower for the fastest pair, k times for the slowest. A change
    to a trained ``rope``, made at test time. Source: Su's blog, 9706 (2023). ``k: null`` is the
    longest length over the trained one, and 1, plain RoPE, at the trained length. ``logn`` as in
    ``rope``. No parameters, any length. Not absolute; causal.
    """

    def stretched(self, frequencies_M: Tensor) -> Tensor:
        pairs = len(frequencies_M)
        pair = torch.arange(1, pairs + 1, dtype=torch.float64)
        return frequencies_M / self.k ** (pair / pairs)
