import math

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding, by_position
from pe_lab.pe.functional import refuse_where, widened

FIRST_GATE = 1e-3
"""``grape_ctx_init_omega``: c is where softplus, which the gate once was, gives it."""
GATE_SCALE = 16
"""``grape_ctx_omega_scale``."""


class GRAPEM(PositionalEncoding):
    """Queries and keys, rotated by the position in one learned plane for each head.

        q'_i = exp(i frequency[h] L[h]) q_i,   k'_j alike
        L[h] = a b^T - b a^T,   (a, b) = plane[h]                                     (D, D)
        frequency[h] = base^(-h/H),   h = 0 .. H - 1

    L has rank 2: its exponential turns the plane of a and b by the angle i frequency[h] s, where
    s^2 = |a|^2 |b|^2 - (a . b)^2, and leaves the rest of the space as it is. So q_i . k_j depends
    on i - j. ``plane`` (H, 2, D) starts as random unit vectors at right angles, where s = 1; then a
    and b are free, and s is learned with them. Any length. Not absolute; causal.

    ``contextual: true`` takes the phase of a token instead of i, a sum of gates of the tokens
    before it, one for all heads of a layer:

        phase[i] = g_0 + .. + g_(i-1),   g_t = sigmoid((gate . x_t + c) / 16)

    x is the attention's input. ``gate`` starts at 0 and c at log(exp(0.001) - 1), where g is 0.39.

    Source: Multiplicative GRAPE of Zhang 2025 (2512.07805), sections 2.1 to 2.3, with its start of
    a and b. It does not say how frequencies of one plane start: RoPE's grid is spread over heads.
    The phase is that of GRAPE-M-ctx in the authors' code (model-architectures/GRAPE at f5b539f).
    The models of the paper's tables turn fixed pairs of features at learned frequencies, as
    ``rope`` with ``learned: true`` does.
    """

    shift_invariant = True
    any_order = True
    fractional = True
    both_ways = True

    def __init__(self, dims: Dims, base: PositiveFloat, contextual: bool = False) -> None:
        super().__init__()
        self.reads_positions = self.both_ways = not contextual
        refuse_where(
            (
                dims.head_dim < 2,
                f"{dims.head_width_reason}, which have no plane to rotate: choose 2 or more",
            )
        )
        h = torch.arange(dims.n_heads, dtype=torch.float64)
        self.frequencies = nn.Buffer(base ** (-h / dims.n_heads), persistent=False)
        a, b = torch.randn(2, dims.n_heads, dims.head_dim)
        a = F.normalize(a, dim=-1)
        b = F.normalize(b - (a * b).sum(-1, keepdim=True) * a, dim=-1)
        self.plane = nn.Parameter(torch.stack((a, b), 1))
        self.gate = nn.Linear(dims.d_model, 1) if contextual else None
        if self.gate is not None:
            nn.init.zeros_(self.gate.weight)
            nn.init.constant_(self.gate.bias, math.log(math.expm1(FIRST_GATE)))

    @property
    def rotates_by_position(self) -> bool:
        return self.gate is None and super().rotates_by_position

    @by_position
    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        pos_BS = inputs.pos_k_BS if self.gate is None else self.phases(inputs.x_BSE)
        with torch.autocast(q_BHTD.device.type, enabled=False):
            # The queries are the last of the keys.
            pos_BT = pos_BS[:, -q_BHTD.shape[2] :]
            return self.turned(q_BHTD, pos_BT), self.turned(k_BHSD, pos_BS)

    def phases(self, x_BSE: Tensor) -> Tensor:
        """Of each token, (B, S), at least in float32."""
        assert self.gate is not None
        gate_BS = (widened(self.gate(x_BSE)).squeeze(-1) / GATE_SCALE).sigmoid()
        return gate_BS.cumsum(1) - gate_BS

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """``phase`` of each key, where it follows from the input."""
        return {} if self.gate is None else {"phase": self.phases(inputs.x_BSE)[:, None, None]}

    def turned(self, x_BHTD: Tensor, pos_BT: Tensor) -> Tensor:
        """exp(n frequency L) x = x + sin(angle)/s L x + (1 - cos(angle))/s^2 L L x."""
        plane_H2D = widened(self.plane)
        gram_H22 = plane_H2D @ plane_H2D.mT
        # Vectors in line span no plane; the angle is then 0.
        aa, bb = gram_H22.double().diagonal(dim1=1, dim2=2).unbind(-1)
        s_H = (aa * bb - gram_H22[:, 0, 1].double().square()).clamp(min=1e-12).sqrt()
        angle_BHT = pos_BT.double()[:, None] * (self.frequencies * s_H)[:, None]
        once = angle_BHT.sin() / s_H[:, None]
        # 1 - cos(angle) would lose the digits of small angles.
        twice = 2 * (angle_BHT / 2).sin().square() / s_H.square()[:, None]
        wide_BHTD = x_BHTD.to(torch.promote_types(x_BHTD.dtype, plane_H2D.dtype))
        along_BHT2 = wide_BHTD @ plane_H2D.mT
        # L x = a (b . x) - b (a . x): its coordinates along a and b.
        first = torch.stack((along_BHT2[..., 1], -along_BHT2[..., 0]), -1)
        along_first = first @ gram_H22
        second = torch.stack((along_first[..., 1], -along_first[..., 0]), -1)
        moved_BHT2 = once[..., None] * first + twice[..., None] * second
        return (wide_BHTD + moved_BHT2.to(wide_BHTD.dtype) @ plane_H2D).to(x_BHTD.dtype)
