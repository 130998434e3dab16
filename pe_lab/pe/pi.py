"""Position interpolation."""

from torch import Tensor

from pe_lab.pe.rope import StretchedRoPE


class PI(StretchedRoPE):
    """RoPE at positions divided by k, so that all fall within the trained ones.

    The pair m is rotated by (i / k) base^(-2m/D), m = 0..D/2-1. A change to a trained ``rope``,
    made at test time; trained so, it is RoPE with lower frequencies. Source: Chen 2023
    (2306.15595). ``k: null`` is the longest length over the trained one, and 1, plain RoPE, at the
    trained length. ``logn`` as in ``rope``. No parameters, any length. Not absolute; causal.
    """

    def stretched(self, frequencies_M: Tensor) -> Tensor:
        return frequencies_M / self.k
