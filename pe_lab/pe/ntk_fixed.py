"""NTK-RoPE, fixed."""

from typing import Any

import torch
from pydantic import PositiveFloat

from pe_lab.pe.base import Dims
from pe_lab.pe.rope import LogN, Pairing, RoPE, Scale, scale


class NTKFixed(RoPE):
    """RoPE written in a larger radix: every pair is interpolated, the slower the more.

    With beta = base^(2/D) and lam = k^(2/D), the pair m = 1..D/2 turns by i / (lam (beta
    lam)^(m-1)): k^(2/D) times slower for the fastest pair, k times for the slowest. A change to a
    trained ``rope``, made at test time. Source: Su's blog, 9706 (2023). ``k: null`` is the
    longest length over the trained one, and 1, plain RoPE, at the trained length. ``logn`` as in
    ``rope``. No parameters, any length. Not absolute; causal.
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
        pair = torch.arange(1, dims.head_dim // 2 + 1, dtype=torch.float64)
        self.frequencies = self.frequencies / self.k ** (2 * pair / dims.head_dim)

    def null_values(self) -> dict[str, Any]:
        return super().null_values() | {"k": self.k}
