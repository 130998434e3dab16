import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding, by_position
from pe_lab.pe.functional import refuse_where, widened


class GRAPEM(PositionalEncoding):
    """Queries and keys, rotated in one learned plane for each head by an angle that grows with the
    position.

        q'_i = exp(i frequency[h] L[h]) q_i,   k'_j alike
        L[h] = a b^T - b a^T,   (a, b) = plane[h]                                     (D, D)
        frequency[h] = base^(-h/H),   h = 0 .. H - 1

    L has rank 2: its exponential turns the plane of a and b by the angle i frequency[h] s, where
    s^2 = |a|^2 |b|^2 - (a . b)^2, and leaves the rest of the space as it is. So q_i . k_j depends
    on i - j. ``plane`` (H, 2, D) starts as random unit vectors at right angles, where s = 1; then a
    and b are free, and s is learned with them. Any length. Not absolute; causal.

    Source: Multiplicative GRAPE of Zhang 2025 (2512.07805), sections 2.1 to 2.3, with its start of
    a and b. It does not say how frequencies of one plane start: RoPE's grid is spread over heads.
    The models of its tables turn fixed pairs of features at learned frequencies, as ``rope`` with
    ``learned: true`` does.
    """

    shift_invariant = True
    any_order = True
    fractional = True
    both_ways = True

    def __init__(self, dims: Dims, base: PositiveFloat) -> None:
        super().__init__()
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

    @by_position
    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(q_BHTD.device.type, enabled=False):
            return self.turned(q_BHTD, inputs.pos_q_BT), self.turned(k_BHSD, inputs.pos_k_BS)

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
