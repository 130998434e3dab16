import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding, by_position
from pe_lab.pe.functional import widened


class PoPE(PositionalEncoding):
    """Content by magnitudes alone, position by angles alone.

        logits[i, j] = sum over c of softplus(q_ic) softplus(k_jc)
                        cos((j - i) frequencies[c] + phase[h, c]) / sqrt(D)
        frequencies[c] = base^(-c/D),   c = 0 .. D - 1

    Each feature of q and k is the magnitude of a complex number, rotated by the position only.
    There are D frequencies where ``rope`` has D/2. After the rotation queries and keys are 2 D
    wide, their real and imaginary parts. ``phase`` (H, D) is learned and clamped to [-2 pi, 0],
    with no gradient outside, as in the published code. ``start: zero`` starts it at 0, ``uniform``
    uniform in [-2 pi, 0]. Any length. Not absolute; causal.

    Source: Gopalakrishnan 2025 (2509.10534).
    """

    shift_invariant = True
    reads_positions = float

    def __init__(self, dims: Dims, base: PositiveFloat, start: Literal["zero", "uniform"]) -> None:
        super().__init__()
        width = dims.head_dim
        theta_D = base ** (-torch.arange(width, dtype=torch.float64) / width)
        self.frequencies = nn.Buffer(theta_D, persistent=False)
        self.phase = nn.Parameter(torch.zeros(dims.n_heads, width))
        if start == "uniform":
            nn.init.uniform_(self.phase, -2 * math.pi, 0)

    @by_position
    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        angle_B1SD = (inputs.pos_k_BS[..., None] * self.frequencies)[:, None]
        delta_H1D = self.phase.clamp(-2 * math.pi, 0)[:, None]
        # Attention divides by the square root of the width that it sees, 2 D.
        q = polar(q_BHTD, angle_B1SD[:, :, -q_BHTD.shape[2] :]) * math.sqrt(2)
        return q, polar(k_BHSD, angle_B1SD + delta_H1D)


def polar(x_BHTD: Tensor, angle: Tensor) -> Tensor:
    """Real and imaginary parts of softplus(x) exp(i angle), (B, H, T, 2 D), in the type of x, but
    computed at least in float32."""
    size = F.softplus(widened(x_BHTD))
    parts = size * angle.cos().to(size.dtype), size * angle.sin().to(size.dtype)
    return torch.cat(parts, -1).to(x_BHTD.dtype)
