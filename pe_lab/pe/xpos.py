import math
from typing import Annotated

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import frequencies, rotate_pairs
from pe_lab.pe.rope import check_pairs

REACH = 104 * math.log(2)
"""The largest exponent of a product of two factors: float32 ends at 2^128, and 24 powers of two
are left to q . k itself."""


class XPos(PositionalEncoding):
    """RoPE whose pairs decay with the distance, those of high frequency the most.

        q'_im = q_im z_m^( i / scale_base) exp(sqrt(-1) i frequencies[m])
        k'_jm = k_jm z_m^(-j / scale_base) exp(sqrt(-1) j frequencies[m])
        z_m   = (2m/D + gamma) / (1 + gamma),   frequencies[m] = base^(-2m/D)

    So the product depends on i - j and decays as z_m^((i - j) / scale_base). Features 2m and 2m + 1
    are a pair. No parameters. Not absolute; causal (a key ahead would be amplified).

    Both exponents are shifted by the middle of the queries' positions, which changes no product. A
    key ahead is masked but computed, and amplified until float32 ends. So positions must lie within
    104 ln 2 scale_base / ln((1 + gamma) / gamma), 29,461 with the default keys; more are refused.

    Source: Sun 2022 (2212.10554), with base 10000, scale_base 512 and gamma 0.4, without its
    blockwise attention.
    """

    shift_invariant = True
    causal = True
    reads_positions = float

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        scale_base: PositiveFloat,
        gamma: Annotated[float, Field(ge=1e-9)],
    ) -> None:
        super().__init__()
        check_pairs(dims)
        self.scale_base, self.steepest = float(scale_base), math.log1p(1 / gamma)
        # Hardly any decay has no end that a position could reach.
        self.max_len = int(REACH / max(self.steepest / scale_base, 1e-15)) + 1
        share = torch.arange(0, dims.head_dim, 2, dtype=torch.float64) / dims.head_dim
        log_z = ((share + gamma) / (1 + gamma)).log() / scale_base
        self.frequencies = nn.Buffer(frequencies(dims.head_dim, base), persistent=False)
        self.log_z = nn.Buffer(log_z, persistent=False)

    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        pos_q_BT, pos_k_BS = inputs.pos_q_BT.double(), inputs.pos_k_BS.double()
        middle_B1 = (pos_q_BT[:, :1] + pos_q_BT[:, -1:]) // 2
        return (
            self._rotated(q_BHTD, pos_q_BT, pos_q_BT - middle_B1),
            self._rotated(k_BHSD, pos_k_BS, middle_B1 - pos_k_BS),
        )

    def _rotated(self, x_BHTD: Tensor, pos_BT: Tensor, exponent_BT: Tensor) -> Tensor:
        angle = (pos_BT[..., None] * self.frequencies)[:, None]
        factor = (exponent_BT[..., None] * self.log_z).exp()[:, None]
        return rotate_pairs(x_BHTD, torch.polar(factor, angle))
