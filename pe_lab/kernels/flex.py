"""Attention with a bias by distance on a GPU: PyTorch's own fused kernels, FlexAttention and SDPA.

Neither makes our dropout mask, so neither serves with dropout. FlexAttention is compiled when it is
first used with sizes of a kind, which takes seconds; it has no backward on the CPU.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from pe_lab.common.dropout import Drop


def serves(q_BHTD: Tensor, k_BHSD: Tensor, bias_HN: Tensor | None, drop: Drop | None) -> bool:
    """Whether ``distance`` is for these tensors."""
    if not q_BHTD.is_cuda or drop is not None:
        return False
    return bias_HN is None or takes(q_BHTD, k_BHSD, bias_HN)


def takes(q_BHTD: Tensor, k_BHSD: Tensor, bias_HN: Tensor) -> bool:
    """Whether FlexAttention is right for heads so wide, worth while for so few queries, and as
    deterministic as asked: it adds the gradient of a bias up in any order."""
    (t, width), s = q_BHTD.shape[2:], k_BHSD.shape[2]
    if 2 * t < s:
        return False
    learns = bias_HN.requires_grad and torch.is_grad_enabled()
    ordered = not (learns and torch.are_deterministic_algorithms_enabled())
    return ordered and 16 <= width <= 256 and width.bit_count() == 1


def distance(
    q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, bias_HN: Tensor | None, drop: Drop | None
) -> Tensor | None:
    """softmax(q.k / sqrt(D) + bias[h, i - j]) @ v over the keys j <= i, (B, H, T, D); None for
    tensors that it does not serve.

    Args:
        bias_HN: for the distances 0 .. N - 1, N >= S.
    """
    if not serves(q_BHTD, k_BHSD, bias_HN, drop):
        return None
    if bias_HN is None:
        return plain(q_BHTD, k_BHSD, v_BHSD)
    return biased(_compiled(), q_BHTD, k_BHSD, v_BHSD, bias_HN)


def plain(q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor) -> Tensor:
    """The same without a bias, on any device."""
    given = (q_BHTD, k_BHSD, v_BHSD)
    if torch.are_deterministic_algorithms_enabled() and any(x.requires_grad for x in given):
        out: Tensor = _Ordered.apply(*given)  # type: ignore[no-untyped-call]
        return out
    return _causal_attention(*given)


def _causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    t, s = q.shape[2], k.shape[2]
    mask = None if t == s else causal_lower_right(t, s)
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=t == s)


class _Ordered(torch.autograd.Function):
    """SDPA that is deterministic where PyTorch is to warn only of what is not: its backward would
    be neither then, since it takes the ordered way in the strict mode alone."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        with torch.enable_grad(), _strict():
            ctx.inside = [x.detach().requires_grad_(x.requires_grad) for x in given]
            ctx.out = _causal_attention(*ctx.inside)
        result: Tensor = ctx.out.detach()
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [x for x in ctx.inside if x.requires_grad]
        with _strict():
            grads = iter(torch.autograd.grad(ctx.out, wanted, grad))
        return tuple(next(grads) if x.requires_grad else None for x in ctx.inside)


@contextmanager
def _strict() -> Iterator[None]:
    before = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def biased(
    attend: Callable[..., Any], q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, bias_HN: Tensor
) -> Tensor:
    """The same by FlexAttention, compiled or, for a test on a CPU, as it is."""

    def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        # Masked keys are looked up too, at distances below 0.
        return score + bias_HN[h, (i - j).clamp(min=0)]

    # All queries, so that what is compiled and the blocks of the mask are for S alone.
    s, missing = k_BHSD.shape[2], k_BHSD.shape[2] - q_BHTD.shape[2]
    q_BHSD = F.pad(q_BHTD, (0, 0, missing, 0))
    out_BHSD = attend(q_BHSD, k_BHSD, v_BHSD, score_mod=add, block_mask=_causal(s, q_BHTD.device))
    out_BHTD: Tensor = out_BHSD[:, :, missing:]
    return out_BHTD


@functools.lru_cache(maxsize=64)
def _causal(length: int, device: torch.device) -> BlockMask:
    # What inference mode makes could not be used in training later.
    with torch.inference_mode(False):
        return create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device)


@functools.cache
def _compiled() -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(flex_attention)
    return compiled
