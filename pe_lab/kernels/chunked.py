"""The road without a compiler: attention by blocks of query rows, in plain PyTorch.

Memory grows with the length, not with its square: the backward makes every block of weights
again, and its dropout mask.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.dropout import Drop
from pe_lab.kernels.blocks import Block, Walk
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


def _mix(walk: Walk, logits: Content, v_BHSD: Tensor) -> Tensor:
    """Values mixed by the weights that follow from the logits."""
    v_OISD = walk.view(v_BHSD)
    out = walk.zeros(v_BHSD[:, :, : walk.queries])
    for block in walk:
        weights = _weights(logits, block)
        if walk.drop is not None:
            weights.mul_(walk.kept(block))
        mixed = walk.new.product("for rows", weights, block.of_columns(v_OISD), _scale(walk))
        block.of_rows(walk.view(out)).copy_(mixed)
    return out


def _unmix(
    walk: Walk, logits: Content, v_BHSD: Tensor, out_BHTD: Tensor, grad_BHTD: Tensor
) -> Tensor:
    """The backward of ``_mix``: the gradient of v; ``logits`` gathers its own."""
    v_OIDS = walk.view(v_BHSD).transpose(2, 3)
    grad_v = walk.zeros(v_BHSD)
    grad_out_OITD = walk.view(grad_BHTD)
    # The sum over keys of weight times its gradient.
    inner_OIT1 = walk.view((out_BHTD * grad_BHTD).sum(-1, keepdim=True))
    for block in walk:
        weights = _weights(logits, block)
        grad_out = block.of_rows(grad_out_OITD)
        v = v_OIDS[block.outer, block.inner, :, : block.columns]
        grad = walk.new.product("grad", grad_out, v, _scale(walk))
        used = weights
        if walk.drop is not None:
            kept = walk.kept(block)
            grad.mul_(kept)
            used = kept.mul_(weights)
        grad.sub_(block.of_rows(inner_OIT1)).mul_(weights)
        used = used.transpose(1, 2)
        for_columns = walk.new.product("for columns", used, grad_out, _scale(walk))
        block.of_columns(walk.view(grad_v)).add_(for_columns)
        logits.backward(block, grad)
    return grad_v


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
        out = _mix(walk, logits, v)
        ctx.save_for_backward(q, k, v, bias_HN, out)
        ctx.drop = drop
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias_HN, out = ctx.saved_tensors
        walk, learned = Walk(q, k, ctx.drop), ctx.needs_input_grad[3]
        logits = Content(walk, q, k) if bias_HN is None else Biased(walk, q, k, bias_HN, learned)
        grad_v = _unmix(walk, logits, v, out, grad)
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
        out = _mix(walk, Counted(walk, q, k, gates, table_ND * position_scale, False), v)
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
        grad_v = _unmix(walk, logits, v, out, grad)
        grads: list[Tensor | None]
        grads = [logits.grad_q, logits.grad_k, grad_v, None, None, None, None, None]
        if gates is not None:
            grads[3:5] = gates.grad_q, gates.grad_k
        if logits.grad_table_ND is not None:
            grads[5] = logits.grad_table_ND * ctx.position_scale
        return tuple(grads)


def _gates(walk: Walk, gate_q: Tensor | None, gate_k: Tensor | None) -> Content | None:
    if gate_q is None or gate_k is None:
        return None
    return Content(walk, gate_q, gate_k, "gate logits")
