"""How attention weights follow from logits: softmax, and what replaces or scales it.

A normalizer maps the logits of a layer and its ``AttentionInputs`` to weights, (B, H, T, S) both.
Shape letters as in pe/base.py.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs
from pe_lab.pe.functional import additive, masked_softmax, widened

LOGN_START = 0.43
"""s of scalable softmax at first: the value of the paper's figure 1."""
LOGN_SLOPE = 0.1
"""How fast the steps of ``LogN`` grow: attn_scale of Llama 4, beta of Ministral 3."""


def count_tokens(inputs: AttentionInputs) -> Tensor:
    """How many tokens there are up to each query, itself included, (T, 1)."""
    t, s = inputs.q_BHTD.shape[2], inputs.k_BHSD.shape[2]
    return torch.arange(s - t + 1, s + 1, device=inputs.q_BHTD.device)[:, None]


def count_visible_keys(inputs: AttentionInputs) -> Tensor:
    """How many keys each query sees, (T, 1)."""
    n_T1 = count_tokens(inputs)
    return n_T1 if inputs.window is None else n_T1.clamp(max=inputs.window)


class Softmax(nn.Module):
    """softmax over the keys that a query sees."""

    def forward(self, logits: Tensor, inputs: AttentionInputs) -> Tensor:
        return masked_softmax(logits, inputs.mask_TS)


class Sink(nn.Module):
    """Softmax with a learned logit of each head in the denominator alone.

        weights_j = exp(logits_j) / (exp(sink_h) + sum over l of exp(logits_l))

    A query may so attend to nothing. The sink starts at 0. Source: gpt-oss (2508.10925).
    """

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.sink = nn.Parameter(torch.zeros(n_heads))

    def forward(self, logits: Tensor, inputs: AttentionInputs) -> Tensor:
        seen_BHTS = logits + additive(inputs.mask_TS, logits.dtype)
        sink_BHT1 = self.sink.to(logits.dtype)[:, None, None].expand(*logits.shape[:3], 1)
        return torch.cat((seen_BHTS, sink_BHT1), -1).softmax(-1)[..., :-1]


class SquaredReLU(nn.Module):
    """relu(logits)^2 / n, with n the number of keys that the query sees (Hua 2022, 2202.10447)."""

    def forward(self, logits: Tensor, inputs: AttentionInputs) -> Tensor:
        visible = logits.masked_fill(~inputs.mask_TS, 0)
        return visible.relu().square() / inputs.mask_TS.sum(-1, keepdim=True)


class Entmax(nn.Module):
    """1.5-entmax over the keys that a query sees: weights that are exactly 0 where logits are far
    smaller than the largest.

        weights_j = max(logits_j / 2 - tau, 0)^2      tau such that they sum to 1

    Source: Peters 2019 (1905.05702).
    """

    def forward(self, logits: Tensor, inputs: AttentionInputs) -> Tensor:
        # In half precision the sums over keys would be so rough that weights summed to up to 9.
        weights: Tensor = _Entmax15.apply(widened(logits), inputs.mask_TS)
        return weights.to(logits.dtype)


class ASEntmax(Entmax):
    """1.5-entmax of logits that are multiplied by a factor of each query and head.

        1 + softplus(beta(x)) ln(n + 1)^(2 tanh(gamma(x)))      n keys that the query sees

    Source: Vasylenko 2025 (2506.16640), as its code deep-spin/asentmax (be54bd3), but for two
    things. The code scales the queries, and here the logits are scaled with what an encoding adds
    to them. The code has the position for n, and here n counts the keys within a window.
    """

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.beta = nn.Linear(d_model, n_heads, bias=False)
        self.gamma = nn.Linear(d_model, n_heads, bias=False)

    def scale(self, x_BTE: Tensor, n_T1: Tensor) -> Tensor:
        """The factor, (B, H, T, 1)."""
        log_n_T1 = n_T1.to(x_BTE.dtype).log1p()
        power_BTH = 2 * self.gamma(x_BTE).tanh()
        scale_BTH = 1 + F.softplus(self.beta(x_BTE)) * log_n_T1**power_BTH
        return scale_BTH.transpose(1, 2)[..., None]

    def forward(self, logits: Tensor, inputs: AttentionInputs) -> Tensor:
        x_BTE = inputs.x_BSE[:, -logits.shape[2] :]
        return super().forward(logits * self.scale(x_BTE, count_visible_keys(inputs)), inputs)


class LogN(nn.Module):
    """Logits, with what an encoding adds to them, multiplied by a factor that grows with n.

        s_h log n                         n: keys that the query sees; s_h learned, of each head
        1 + 0.1 ln(1 + floor(n / N))      n: tokens up to the query, whatever the window

    Source: scalable softmax, Nakanishi 2025 (2501.19399); Llama 4, with N the trained length.

    Args:
        every: N; None: the factor is learned.
        then: the normalizer of the scaled logits.
    """

    def __init__(self, n_heads: int, every: int | None, then: nn.Module) -> None:
        super().__init__()
        self.every, self.then = every, then
        self.scale = nn.Parameter(torch.full((n_heads,), LOGN_START)) if every is None else None

    def forward(self, logits: Tensor, inputs: AttentionInputs) -> Tensor:
        return self.then(logits * self.growth(inputs), inputs)

    def growth(self, inputs: AttentionInputs) -> Tensor:
        """The factor of the logits, (H or 1, T, 1)."""
        if self.scale is not None:
            return self.scale[:, None, None] * count_visible_keys(inputs).log()
        assert self.every is not None
        return 1 + LOGN_SLOPE * (count_tokens(inputs) // self.every).log1p()[None]


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
        support = (thresholds <= ordered).sum(-1, keepdim=True)
        root = (half - thresholds.gather(-1, support - 1)).clamp(min=0)
        ctx.save_for_backward(root)
        return root.square()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), (root,) = gradients, ctx.saved_tensors
        mean = (gradient * root).sum(-1, keepdim=True) / root.sum(-1, keepdim=True)
        return root * (gradient - mean), None
