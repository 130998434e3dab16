"""GRAPE: positions as group actions, of queries and keys (M) or added to the logits (A, AP).

Source: Zhang 2025 (2512.07805).
"""

import math
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding, by_position
from pe_lab.pe.functional import alibi_slopes, distances, refuse_where, rotate_halves, widened


class GRAPEA(PositionalEncoding):
    """ALiBi, whose slope follows from the query and the key.

        logits[h, i, j] = q_i . k_j / sqrt(D) - (i - j) slope[h] (g[h, i] + f[h, j])
        g[h, i] = softplus(query[h] . q_i / (|query[h]| sqrt(D)))
        f[h, j] = softplus(key[h] . k_j / (|key[h]| sqrt(D)))
        slope[h] = softplus(scale[h]) m[h],   m the slopes of ALiBi

    ``query`` and ``key`` are (H, D) and start normal with deviation 1/sqrt(D). softplus(scale)
    starts at 1. ``gates: query`` has g alone, ``key`` f alone. Any length. Not absolute; causal.

    Source: GRAPE-A-QK, -Q and -K of Zhang 2025 (2512.07805), equation 4.6, with the slopes and
    lengths of the authors' code (model-architectures/GRAPE at f5b539f), which norms q and k, too:
    ``model.qk_norm=true``.
    """

    shift_invariant = True
    reads_positions = float

    def __init__(self, dims: Dims, gates: Literal["both", "query", "key"]) -> None:
        super().__init__()
        self.gates = gates
        self.slopes = nn.Buffer(torch.tensor(alibi_slopes(dims.n_heads)), persistent=False)
        self.scale = nn.Parameter(torch.full((dims.n_heads,), math.log(math.e - 1)))
        directions = torch.randn(2, dims.n_heads, dims.head_dim) / math.sqrt(dims.head_dim)
        self.query = nn.Parameter(directions[0]) if gates != "key" else None
        self.key = nn.Parameter(directions[1]) if gates != "query" else None

    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        q_BHT, k_BHS = gate(q_BHTD, self.query), gate(k_BHSD, self.key)
        slope_H1 = (F.softplus(self.scale) * self.slopes)[:, None]
        total = (q_BHT * slope_H1)[..., None] + (k_BHS * slope_H1)[:, :, None]
        return content_BHTS - total * distances(inputs.pos_q_BT, inputs.pos_k_BS)[:, None]

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """The gates of queries and keys."""
        q_BHT, k_BHS = gate(inputs.q_BHTD, self.query), gate(inputs.k_BHSD, self.key)
        gates = {"gate of the query": q_BHT[..., None], "gate of the key": k_BHS[:, :, None]}
        return {name: gate for name, gate in gates.items() if gate.any()}


def gate(x_BHTD: Tensor, towards_HD: Tensor | None) -> Tensor:
    """softplus(w . x / (|w| sqrt(D))), (B, H, T), at least in float32; 0 without a w."""
    x = widened(x_BHTD)
    if towards_HD is None:
        return x.new_zeros(x.shape[:3])
    unit_H1D = F.normalize(widened(towards_HD), dim=-1)[:, None]
    return F.softplus((x * unit_H1D).sum(-1) / math.sqrt(x.shape[-1]))


class GRAPEAP(PositionalEncoding):
    """Decay by gates of the tokens between query and key, each computed for that query.

        logits[h, i, j] = q_i . k_j / sqrt(D) + psi[h, i, j+1] + .. + psi[h, i, i]
        psi[h, i, t] = slopes[h] log sigmoid(p[h, i] . R_t n[h, t] / width)
        p[h, t] = (project x_t)[h],   n[h, t] = p[h, t] / rms(p[h, t])               (width,)

    x is the attention's input, ``slopes`` are ALiBi's, and R_t turns every pair of features (m and
    m + width/2) by minus the position of t, in radians. As in ``fox`` the key's own gate does not
    count and the query's does, but a gate depends on the query too. Only n is turned, so positions
    count by themselves. ``project`` is without bias and starts as the trunk's. Any length.
    Absolute; causal.

    Source: GRAPE-AP of Zhang 2025 (2512.07805), section 5, as the authors' code computes it
    (model-architectures/GRAPE at f5b539f, its ``grape-ap-v1`` with p of width 8). The paper
    normalises the p of the query, too.
    """

    reads_positions = float

    def __init__(self, dims: Dims, width: Annotated[int, Field(gt=0, multiple_of=2)]) -> None:
        super().__init__()
        self.n_heads = dims.n_heads
        self.slopes = nn.Buffer(torch.tensor(alibi_slopes(dims.n_heads)), persistent=False)
        self.project = nn.Linear(dims.d_model, dims.n_heads * width, bias=False)

    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        psi_BHTS = self.slopes[:, None, None] * F.logsigmoid(self.agreement(inputs))
        # A sum from the last token back: later tokens add zeros.
        path_BHTS = (psi_BHTS * inputs.mask_TS).flip(-1).cumsum(-1).flip(-1)
        return content_BHTS + F.pad(path_BHTS[..., 1:], (0, 1))

    def agreement(self, inputs: AttentionInputs) -> Tensor:
        """p[h, i] . R_t n[h, t] / width, (B, H, T, S), at least in float32."""
        p_BHSW = widened(self.project(inputs.x_BSE).unflatten(-1, (self.n_heads, -1)))
        p_BHSW = p_BHSW.transpose(1, 2)
        width = p_BHSW.shape[-1]
        angle_B1S1 = -inputs.pos_k_BS.double()[:, None, :, None]
        with torch.autocast(p_BHSW.device.type, enabled=False):
            n_BHSW = F.rms_norm(p_BHSW, (width,))
            turned_BHSW = rotate_halves(n_BHSW, angle_B1S1.cos(), angle_B1S1.sin())
            seeking_BHTW = p_BHSW[:, :, -inputs.pos_q_BT.shape[1] :]
            return seeking_BHTW @ turned_BHSW.mT / width

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """The ``gate`` of each token for each query."""
        return {"gate": self.agreement(inputs).sigmoid()}


FIRST_GATE = 1e-3
"""``grape_ctx_init_omega`` of the published code: c begins at log(exp(this) - 1)."""
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

    def __init__(self, dims: Dims, base: PositiveFloat, contextual: bool = False) -> None:
        super().__init__()
        self.reads_positions = None if contextual else float
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

    @by_position
    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        pos_BS = inputs.pos_k_BS if self.gate is None else self.phases(inputs.x_BSE)
        with torch.autocast(q_BHTD.device.type, enabled=False):
            # The queries are the last of the keys.
            pos_BT = pos_BS[:, -q_BHTD.shape[2] :]
            return self.rotate_in_plane(q_BHTD, pos_BT), self.rotate_in_plane(k_BHSD, pos_BS)

    def phases(self, x_BSE: Tensor) -> Tensor:
        """The phase of each token, (B, S), at least in float32."""
        assert self.gate is not None
        gate_BS = (widened(self.gate(x_BSE)).squeeze(-1) / GATE_SCALE).sigmoid()
        return gate_BS.cumsum(1) - gate_BS

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """The ``phase`` of each key, if it follows from the input."""
        return {} if self.gate is None else {"phase": self.phases(inputs.x_BSE)[:, None, None]}

    def rotate_in_plane(self, x_BHTD: Tensor, pos_BT: Tensor) -> Tensor:
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
