"""Sparse attention weights: 1.5-entmax, and the temperature of ASEntmax.

Shape letters as in pe/base.py.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.pe.functional import widened


class _Entmax15(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, mask: Tensor) -> Tensor:
        logits = logits.masked_fill(~mask, -torch.inf)
        # The threshold is at most 1 below the largest half, so smaller ones have no weight.
        half = ((logits - logits.amax(-1, keepdim=True)) / 2).clamp(min=-2)
        ordered = half.sort(-1, descending=True).values
        count = torch.arange(1, half.shape[-1] + 1, device=half.device)
        mean = ordered.cumsum(-1) / count
        spread = ordered.square().cumsum(-1) - count * mean.square()
        thresholds = mean - ((1 - spread) / count).clamp(min=0).sqrt()
        kept = (thresholds <= ordered).sum(-1, keepdim=True)
        root = (half - thresholds.gather(-1, kept - 1)).clamp(min=0)
        ctx.save_for_backward(root)
        return root.square()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), (root,) = gradients, ctx.saved_tensors
        mean = (gradient * root).sum(-1, keepdim=True) / root.sum(-1, keepdim=True)
        return root * (gradient - mean), None


def entmax15(logits: Tensor, mask: Tensor) -> Tensor:
    """The weights max(logits / 2 - tau, 0)^2 over what the mask allows, with tau such that they sum
    to 1: far smaller logits get none. Source: Peters 2019 (1905.05702)."""
    # In half precision the sums over keys would be so rough that weights summed to up to 9.
    weights: Tensor = _Entmax15.apply(widened(logits), mask)
    return weights.to(logits.dtype)


class AdaptiveScale(nn.Module):
    """The factor of the logits of ASEntmax, of each query and head.

        1 + softplus(beta(x)) ln(n + 1)^(2 tanh(gamma(x)))      n keys that the query sees

    Source: Vasylenko 2025 (2506.16640), as its code deep-spin/asentmax (be54bd3), but for two
    things. The code scales the queries, and here the logits are scaled with what an encoding adds
    to them. The code has the position for n, and here n counts the keys within a window.
    """

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.beta = nn.Linear(d_model, n_heads, bias=False)
        self.gamma = nn.Linear(d_model, n_heads, bias=False)

    def forward(self, x_BTE: Tensor, n_T1: Tensor) -> Tensor:
        """(B, H, T, 1)"""
        log_n_T1 = n_T1.to(x_BTE.dtype).log1p()
        power_BTH = 2 * self.gamma(x_BTE).tanh()
        scale_BTH = 1 + F.softplus(self.beta(x_BTE)) * log_n_T1**power_BTH
        return scale_BTH.transpose(1, 2)[..., None]
