"""Position interpolation."""

from typing import Any

from pydantic import PositiveFloat

from pe_lab.pe.base import Dims
from pe_lab.pe.rope import LogN, Pairing, RoPE, Scale, scale


class PI(RoPE):
    """RoPE at positions divided by k, so that all fall within the trained ones.

    The pair m turns by (i / k) base^(-2m/D), m = 0..D/2-1. A change to a trained ``rope``, made at
    test time; trained so, it is RoPE with slower turns. Source: Chen 2023 (2306.15595). ``k:
    null`` is the longest length over the trained one, and 1, plain RoPE, at the trained length.
    ``logn`` as in ``rope``. No parameters, any length. Not absolute; causal.
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
        super().__init__(dims, base, pairing, logn, logn_clip)
        self.k = scale(dims, k)
        self.frequencies = self.frequencies / self.k

    def null_values(self) -> dict[str, Any]:
        return super().null_values() | {"k": self.k}
