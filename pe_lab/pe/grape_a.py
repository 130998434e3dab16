import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import alibi_slopes, distances, widened


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
    fractional = True
    needs_softmax = "its slopes"

    def __init__(self, dims: Dims, gates: Literal["both", "query", "key"]) -> None:
        super().__init__()
        self.gates = gates
        self.slopes = nn.Buffer(torch.tensor(alibi_slopes(dims.n_heads)), persistent=False)
        self.scale = nn.Parameter(torch.full((dims.n_heads,), math.log(math.e - 1)))
        drawn = torch.randn(2, dims.n_heads, dims.head_dim) / math.sqrt(dims.head_dim)
        self.query = nn.Parameter(drawn[0]) if gates != "key" else None
        self.key = nn.Parameter(drawn[1]) if gates != "query" else None

    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        q_BHT, k_BHS = gate(q_BHTD, self.query), gate(k_BHSD, self.key)
        slope_H1 = (F.softplus(self.scale) * self.slopes)[:, None]
        total = (q_BHT * slope_H1)[..., None] + (k_BHS * slope_H1)[:, :, None]
        return content_BHTS - total * distances(inputs.pos_q_BT, inputs.pos_k_BS)[:, None]

    def ablations(self) -> dict[str, PositionalEncoding]:
        return {"slopes": self.without("logits")}

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """The gates of queries and keys."""
        q_BHT, k_BHS = gate(inputs.q_BHTD, self.query), gate(inputs.k_BHSD, self.key)
        named = {"gate of the query": q_BHT[..., None], "gate of the key": k_BHS[:, :, None]}
        return {name: of for name, of in named.items() if of.any()}


def gate(x_BHTD: Tensor, towards_HD: Tensor | None) -> Tensor:
    """softplus(w . x / (|w| sqrt(D))), (B, H, T), at least in float32; 0 without a w."""
    x = widened(x_BHTD)
    if towards_HD is None:
        return x.new_zeros(x.shape[:3])
    unit_H1D = F.normalize(widened(towards_HD), dim=-1)[:, None]
    return F.softplus((x * unit_H1D).sum(-1) / math.sqrt(x.shape[-1]))
