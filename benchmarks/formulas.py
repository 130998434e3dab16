"""Attention as the formulas say it, in plain PyTorch: what a newcomer would write, and what ours is
measured against. CoPE does what its paper's listing does, operation by operation.

Shape letters as in pe_lab/pe/base.py; L tokens, R rows of a table.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.ours import Made, sized, transformer
from pe_lab.pe.functional import alibi_slopes


class Formula(nn.Module):
    """softmax(q_i . k_j / sqrt(D) + what the encoding adds) over j <= i, dropout, times v."""

    def __init__(self, length: int, heads: int, width: int, p: float) -> None:
        super().__init__()
        self.length, self.heads, self.width, self.p = length, heads, width, p
        place = torch.arange(length)
        self.distance_LL = (place[:, None] - place).clamp(min=0)
        # 0 where a key may be seen, -inf elsewhere: adding it is the cheapest mask.
        self.mask_LL = torch.zeros(length, length).masked_fill(place[:, None] < place, -math.inf)

    def forward(self, q_BHLD: Tensor, k_BHLD: Tensor, v_BHLD: Tensor) -> Tensor:
        logits = self.logits(q_BHLD, k_BHLD) + self.mask_LL
        mixed: Tensor = F.dropout(logits.softmax(-1), self.p) @ v_BHLD
        return mixed

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        product: Tensor = q @ k.transpose(-1, -2) / math.sqrt(self.width)
        return product


class Rotated(Formula):
    """RoPE: q and k turned pair by pair before the product."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        rate = 10000 ** (-torch.arange(0, self.width, 2) / self.width)
        angle = (torch.arange(self.length)[:, None] * rate).repeat_interleave(2, -1)
        self.cos, self.sin = angle.cos(), angle.sin()

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(self.turned(q), self.turned(k))

    def turned(self, x: Tensor) -> Tensor:
        even, odd = x[..., ::2], x[..., 1::2]
        turned: Tensor = x * self.cos + torch.stack((-odd, even), -1).flatten(-2) * self.sin
        return turned


class Sloped(Formula):
    """ALiBi: minus the distance times the head's slope."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        self.bias_HLL = -torch.tensor(alibi_slopes(self.heads))[:, None, None] * self.distance_LL

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) + self.bias_HLL


class Bucketed(Formula):
    """T5: a learned number for the head and the bucket of the distance, 16 exact buckets and 16
    that grow up to 128."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        far = 16 + (self.distance_LL.clamp(min=1) / 16).log() / math.log(8) * 16
        exact = self.distance_LL < 16
        self.bucket_LL = torch.where(exact, self.distance_LL, far.long().clamp(max=31))
        self.table = nn.Embedding(32, self.heads)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        bias_HLL: Tensor = self.table(self.bucket_LL).permute(2, 0, 1)
        return super().logits(q, k) + bias_HLL


class Rowed(Formula):
    """The relative PE of the CoPE paper: a learned row for every distance, added to the key."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        self.table_RD = nn.Parameter(torch.randn(self.length, self.width) / math.sqrt(self.width))

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) + self.at_distance(q @ self.table_RD.T)

    def at_distance(self, scores_BHLR: Tensor) -> Tensor:
        """scores / sqrt(D) at the row of each key's distance."""
        rows = self.distance_LL.expand(*scores_BHLR.shape[:2], -1, -1)
        return scores_BHLR.gather(-1, rows) / math.sqrt(self.width)


class Projected(Rowed):
    """Transformer-XL: q.k + q.(W R) + u.k + v.(W R), R sinusoids of the distance."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        model_width = self.heads * self.width
        rate = 10000 ** (-torch.arange(0, model_width, 2) / model_width)
        angle = torch.arange(self.length)[:, None] * rate
        self.waves_RE = torch.cat((angle.sin(), angle.cos()), -1)
        del self.table_RD
        self.project = nn.Linear(model_width, model_width, bias=False)
        self.u, self.v = (
            nn.Parameter(0.02 * torch.randn(self.heads, 1, self.width)) for _ in range(2)
        )

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        keys_HRD = self.project(self.waves_RE).unflatten(-1, (self.heads, -1)).transpose(0, 1)
        far = (q + self.v) @ keys_HRD.transpose(-1, -2)
        return Formula.logits(self, q + self.u, k) + self.at_distance(far)


class Counted(Formula):
    """CoPE: gates are sigmoids of the logits, positions their sums from the query back to the key,
    clamped to the last row; between the rows of the table it interpolates."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        self.most = self.length
        self.table_DR = nn.Parameter(torch.zeros(self.width, self.most + 1))

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        # The mask makes the gates of later keys zero.
        logits = super().logits(q, k) + self.mask_LL
        gates = torch.sigmoid(logits)
        position = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=self.most)
        above, below = position.ceil().long(), position.floor().long()
        scores_BHLR = q @ self.table_DR
        at_above, at_below = scores_BHLR.gather(-1, above), scores_BHLR.gather(-1, below)
        share = position - below
        return logits + at_above * share + at_below * (1 - share)


FORMULAS: dict[str, type[Formula]] = {
    "none": Formula,
    "rope": Rotated,
    "alibi": Sloped,
    "t5": Bucketed,
    "relative": Rowed,
    "transformer_xl": Projected,
    "cope": Counted,
}


def attention(encoding: str, size: str, length: int, batch: int, dropout: float) -> Made:
    """Forward and backward, from queries, keys and values that each stand (B, H, L, D)."""
    cfg = transformer(sized(encoding, size, dropout))
    torch.manual_seed(0)
    heads, width = cfg.n_heads, cfg.d_model // cfg.n_heads
    core = FORMULAS[encoding](length, heads, width, dropout)
    given = [torch.randn(batch, heads, length, width, requires_grad=True) for _ in range(3)]
    back = torch.randn(batch, heads, length, width)

    def run() -> None:
        torch.autograd.backward(core(*given), back)
        for x in given:
            x.grad = None
        core.zero_grad(set_to_none=True)

    return Made(run)
