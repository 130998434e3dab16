"""CoPE's position terms: gates summed to positions, and what a position adds to the logit.

Shape letters: B sequences, H heads, T queries, S keys, D width of a head, R rows of the table,
N hidden units.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.pe.functional import alibi_slopes

MLP_WIDTH = 64


class TablePositions(nn.Module):
    """q_i . e[p_ij], e a learned table interpolated between whole positions."""

    def __init__(self, head_dim: int, npos: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(npos, head_dim))

    def forward(self, q_BHTD: Tensor, gate_logits_BHTS: Tensor, mask_TS: Tensor | None) -> Tensor:
        scores_BHTR = (q_BHTD @ self.table.T).to(gate_logits_BHTS.dtype)
        if torch.is_inference_mode_enabled():
            return picked(scores_BHTR, count(gate_logits_BHTS, mask_TS, len(self.table) - 1))
        return CountAndPick.apply(gate_logits_BHTS, scores_BHTR, mask_TS)


class MLPPositions(nn.Module):
    """q_i . e[p_ij], e a perceptron of the fractional position."""

    def __init__(self, head_dim: int, npos: int) -> None:
        super().__init__()
        self.most = npos - 1
        self.hidden = nn.Linear(1, MLP_WIDTH)
        # No bias: it would add q_i . c to every key of a row, which softmax cannot see.
        self.out = nn.Linear(MLP_WIDTH, head_dim, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, q_BHTD: Tensor, gate_logits_BHTS: Tensor, mask_TS: Tensor | None) -> Tensor:
        share_BHTS = count(gate_logits_BHTS, mask_TS, self.most) / max(self.most, 1)
        hidden_BHTSN = self.hidden(share_BHTS[..., None]).relu()
        # q . (W h) = (q W) . h: no (T, S, D) tensor of vectors e.
        q_BHTN = q_BHTD @ self.out.weight
        return (hidden_BHTSN @ q_BHTN[..., None]).squeeze(-1)


class SlopePositions(nn.Module):
    """-m_h p_ij with ALiBi's slopes m_h."""

    slopes: Tensor

    def __init__(self, n_heads: int, npos: int) -> None:
        super().__init__()
        self.most = npos - 1
        self.register_buffer("slopes", torch.tensor(alibi_slopes(n_heads)), persistent=False)

    def forward(self, q_BHTD: Tensor, gate_logits_BHTS: Tensor, mask_TS: Tensor | None) -> Tensor:
        return -self.slopes[:, None, None] * count(gate_logits_BHTS, mask_TS, self.most)


def count(gate_logits_BHTS: Tensor, mask_TS: Tensor | None, most: int) -> Tensor:
    """p_ij: the gates of row i summed from its last key back to j, at most ``most``.

    Args:
        mask_TS: None: nothing is masked.
    """
    return summed(gates_of(gate_logits_BHTS, mask_TS), most)


def gates_of(gate_logits_BHTS: Tensor, mask_TS: Tensor | None) -> Tensor:
    """g_ij, zero where masked."""
    gates_BHTS = gate_logits_BHTS.sigmoid()
    return gates_BHTS if mask_TS is None else gates_BHTS * mask_TS


def summed(gates_BHTS: Tensor, most: int) -> Tensor:
    """p_ij: the gates of row i summed from its last key back to j, at most ``most``."""
    return gates_BHTS.flip(-1).cumsum(-1).flip(-1).clamp(max=most)


def picked(scores_BHTR: Tensor, p_BHTS: Tensor) -> Tensor:
    """scores[p], linear between whole positions: ``CountAndPick`` without what its backward needs,
    in fewer calls, as decoding a token is bound by their number."""
    below = p_BHTS.long()
    above = (below + 1).clamp(max=scores_BHTR.shape[-1] - 1)
    return torch.lerp(scores_BHTR.gather(-1, below), scores_BHTR.gather(-1, above), p_BHTS.frac())


class CountAndPick(torch.autograd.Function):
    """scores[p] for p = count(gate logits), linear between whole positions.

    Autograd finds the same gradient in more passes over (B, H, T, S).
    """

    @staticmethod
    def forward(
        ctx: Any, gate_logits_BHTS: Tensor, scores_BHTR: Tensor, mask_TS: Tensor | None
    ) -> Tensor:
        gates = gates_of(gate_logits_BHTS, mask_TS)
        p = summed(gates, scores_BHTR.shape[-1] - 1)
        whole = p.long()
        fraction = p.frac_()
        # The last row has no next one: slope 0, and so no gradient where p is clamped.
        slope = F.pad(scores_BHTR.diff(dim=-1), (0, 1)).gather(-1, whole)
        ctx.save_for_backward(scores_BHTR, gates, whole, fraction, slope)
        return torch.addcmul(scores_BHTR.gather(-1, whole), fraction, slope)

    @staticmethod
    def backward(ctx: Any, grad_BHTS: Tensor) -> tuple[Tensor, Tensor, None]:
        scores_BHTR, gates, whole, fraction, slope = ctx.saved_tensors
        # The gate at k is part of every p_ij with j <= k.
        grad_gates = (grad_BHTS * slope).cumsum(-1)
        grad_gate_logits = grad_gates.mul_(gates).mul_(1 - gates)
        empty_BHTR = torch.zeros_like(scores_BHTR)
        above = empty_BHTR.scatter_add(-1, whole, grad_BHTS * fraction)
        grad_scores = empty_BHTR.scatter_add(-1, whole, grad_BHTS) - above
        return grad_gate_logits, grad_scores + F.pad(above[..., :-1], (1, 0)), None
