"""The backend without a compiler: attention by blocks of query rows, in plain PyTorch.

Memory grows with the length, not with its square: the backward makes every block of weights
again, and its dropout mask.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.common.dropout import Drop
from pe_lab.kernels.blocks import Block, Walk, by_token
from pe_lab.kernels.chunked_logits import Biased, Content, Counted


def cope(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    gate_q_BHTD: Tensor,
    gate_k_BHSD: Tensor,
    table_ND: Tensor,
    position_scale: float,
    drop: Drop | None,
) -> Tensor:
    """Causal attention with contextual positions, (B, H, T, D)."""
    same = gate_q_BHTD is q_BHTD and gate_k_BHSD is k_BHSD
    gates = (None, None) if same else (gate_q_BHTD, gate_k_BHSD)
    out: Tensor = _Cope.apply(  # type: ignore[no-untyped-call]
        q_BHTD, k_BHSD, v_BHSD, *gates, table_ND, position_scale, drop
    )
    return out


def distance(
    q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, bias_HN: Tensor | None, drop: Drop | None
) -> Tensor:
    """Causal attention, (B, H, T, D), with a bias for each head and distance."""
    if bias_HN is None and drop is None and q_BHTD.shape == k_BHSD.shape:
        return F.scaled_dot_product_attention(q_BHTD, k_BHSD, v_BHSD, is_causal=True)
    out: Tensor = _Distance.apply(  # type: ignore[no-untyped-call]
        q_BHTD, k_BHSD, v_BHSD, bias_HN, drop
    )
    return out


@torch.inference_mode()
def _mix(walk: Walk, logits: Content, v_BHSD: Tensor, out_BHTD: Tensor) -> None:
    """Fill ``out`` with the values mixed by the weights that follow from the logits."""
    parts = walk.of_columns(v_BHSD), walk.of_rows(out_BHTD)
    for block, v, out in zip(walk.blocks, *parts, strict=True):
        weights = _weights(logits, block)
        if walk.drop is not None:
            weights.mul_(walk.kept(block))
        out.copy_(walk.new.product("for rows", weights, v, _scale(walk)))


@torch.inference_mode()
def _unmix(
    walk: Walk,
    logits: Content,
    v_BHSD: Tensor,
    out_BHTD: Tensor,
    grad_BHTD: Tensor,
    grad_v_BHSD: Tensor,
) -> None:
    """The backward of ``_mix``: fill the gradient of v; ``logits`` gathers its own."""
    # The sum over keys of weight times its gradient.
    inner_BHT1 = (out_BHTD * grad_BHTD).sum(-1, keepdim=True)
    rows = walk.of_rows(grad_BHTD), walk.of_rows(inner_BHT1)
    columns = walk.of_columns(v_BHSD), walk.of_columns(grad_v_BHSD)
    for block, grad_out, inner, v, grad_v in zip(walk.blocks, *rows, *columns, strict=True):
        weights = _weights(logits, block)
        grad = walk.new.product("grad", grad_out, v.transpose(1, 2), _scale(walk))
        used = weights if walk.drop is None else walk.kept(block).mul_(weights)
        grad.mul_(used).addcmul_(weights, inner, value=-1)
        used = used.transpose(1, 2)
        block.give(grad_v, walk.new.product("for columns", used, grad_out, _scale(walk)))
        logits.backward(block, grad)


def _scale(walk: Walk) -> float:
    return 1.0 if walk.drop is None else walk.drop.scale


def _weights(logits: Content, block: Block) -> Tensor:
    found = logits.logits(block)
    return torch.softmax(found, -1, out=found)


class _Distance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias_HN: Tensor | None, drop: Drop | None
    ) -> Tensor:
        walk = Walk(q, k, drop)
        logits = Content(walk, q, k) if bias_HN is None else Biased(walk, q, k, bias_HN, False)
        out = by_token(v[:, :, : walk.queries])
        _mix(walk, logits, v, out)
        ctx.save_for_backward(q, k, v, bias_HN, out)
        ctx.drop = drop
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias_HN, out = ctx.saved_tensors
        walk, learned = Walk(q, k, ctx.drop), ctx.needs_input_grad[3]
        logits = Content(walk, q, k) if bias_HN is None else Biased(walk, q, k, bias_HN, learned)
        logits.expect_gradients()
        grad_v = by_token(v)
        _unmix(walk, logits, v, out, grad, grad_v)
        grad_bias = logits.grad_bias() if isinstance(logits, Biased) else None
        return logits.grad_q, logits.grad_k, grad_v, grad_bias, None


class _Cope(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate_q: Tensor | None,
        gate_k: Tensor | None,
        table_ND: Tensor,
        position_scale: float,
        drop: Drop | None,
    ) -> Tensor:
        walk = Walk(q, k, drop)
        gates = _gates(walk, gate_q, gate_k)
        out = by_token(v[:, :, : walk.queries])
        _mix(walk, Counted(walk, q, k, gates, table_ND * position_scale, False), v, out)
        ctx.save_for_backward(q, k, v, gate_q, gate_k, table_ND, out)
        ctx.drop, ctx.position_scale = drop, position_scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, gate_q, gate_k, table_ND, out = ctx.saved_tensors
        walk, learned = Walk(q, k, ctx.drop), ctx.needs_input_grad[5]
        gates = _gates(walk, gate_q, gate_k)
        logits = Counted(walk, q, k, gates, table_ND * ctx.position_scale, learned)
        logits.expect_gradients()
        grad_v = by_token(v)
        _unmix(walk, logits, v, out, grad, grad_v)
        grads: list[Tensor | None]
        grads = [logits.grad_q, logits.grad_k, grad_v, None, None, None, None, None]
        if gates is not None:
            grads[3:5] = gates.grad_q, gates.grad_k
        grad_table_ND = logits.grad_table()
        if grad_table_ND is not None:
            grads[5] = grad_table_ND * ctx.position_scale
        return tuple(grads)


def _gates(walk: Walk, gate_q: Tensor | None, gate_k: Tensor | None) -> Content | None:
    if gate_q is None or gate_k is None:
        return None
    return Content(walk, gate_q, gate_k, "gate logits")
