"""The C++ kernel of DAPE's attention."""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.core.dropout import Drop
from pe_lab.kernels.cpu.ctypes_abi import Strided, by_token, call, check, contiguous_rows
from pe_lab.kernels.cpu.distance import BLOCK, PARTS, Problem, problem_of

HEADS = (1, 2, 4, 8)
"""Numbers of heads that the kernel is compiled for."""


class _Problem(ctypes.Structure):
    """dape.cpp."""

    _fields_ = (
        ("attention", Problem),
        ("units", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("from_content", "by_distance", "out")),
        *((f"grad_{name}", ctypes.c_void_p) for name in ("from_content", "by_distance", "out")),
    )


def dape(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    bias_HN: Tensor,
    from_content_WH: Tensor,
    by_distance_WN: Tensor,
    out_WH: Tensor,
    drop: Drop | None,
) -> Tensor | None:
    """Causal attention with DAPE's logits (pe/dape.py), (B, H, T, D); W hidden units, n = i - j:

        logits_h = a_h + bias[h, n] + sum over w of out[w, h] leaky_relu(u_w), a = q . k / sqrt(D)
        u_w = by_distance[w, n] + sum over h of from_content[w, h] a_h

    The T queries are the last of the S tokens. Memory grows with T + S. None for a number of heads
    that it is not compiled for.
    """
    (h, t), s, w = q_BHTD.shape[1:3], k_BHSD.shape[2], len(out_WH)
    if h not in HEADS or 0 in (len(q_BHTD), t):
        return None
    of = {
        "bias": (bias_HN[:, :s], (h, s)),
        "from_content": (from_content_WH, (w, h)),
        "by_distance": (by_distance_WN[:, :s], (w, s)),
        "out": (out_WH, (w, h)),
    }
    check(q_BHTD, k_BHSD, v=(v_BHSD, tuple(k_BHSD.shape)), **of)
    weights = (x.contiguous() for x, _ in of.values())
    out: Tensor = _Dape.apply(drop, q_BHTD, k_BHSD, v_BHSD, *weights)  # type: ignore[no-untyped-call]
    return out


class _Dape(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, drop: Drop | None, *inputs: Tensor) -> Tensor:
        q, k, v, *weights = inputs
        q, k, v = contiguous_rows(q), contiguous_rows(k), contiguous_rows(v)
        out = by_token(*q.shape, like=q)
        statistics = q.new_empty(2, *q.shape[:-1])
        tensors = q, k, v, *weights, out, statistics
        call("dape", "dape_forward", q.dtype, _problem(tensors, drop))
        ctx.save_for_backward(*tensors)
        ctx.drop = drop
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, _, *weights, _, _ = ctx.saved_tensors
        problem = _problem(ctx.saved_tensors, ctx.drop)
        grad_out, attention = contiguous_rows(grad_out), problem.attention
        parts = attention.parts
        grad_q = by_token(parts, *q.shape, like=q)
        grad_k, grad_v = by_token(*k.shape, like=k), by_token(*v.shape, like=v)
        grad_bias = q.new_empty(parts, *k.shape[:-1])
        attention.grad_out, attention.grad_q = Strided(grad_out), Strided(grad_q)
        attention.grad_k, attention.grad_v = Strided(grad_k), Strided(grad_v)
        attention.grad_bias = grad_bias.data_ptr()
        grads = [q.new_empty(parts, len(q), *x.shape) for x in weights]
        for name, grad in zip(("from_content", "by_distance", "out"), grads, strict=True):
            setattr(problem, f"grad_{name}", grad.data_ptr())
        call("dape", "dape_backward", q.dtype, problem)
        sums = (x.sum((0, 1)) for x in (grad_bias, *grads))
        return None, grad_q.sum(0), grad_k, grad_v, *sums


def _problem(tensors: tuple[Tensor, ...], drop: Drop | None) -> _Problem:
    q, k, v, bias, from_content, by_distance, weights_out, out, statistics = tensors
    problem = _Problem(problem_of(q, k, v, drop, out, statistics), len(weights_out))
    attention = problem.attention
    # Of sequences: all heads go together.
    attention.parts = max(1, min(-(-PARTS // len(q)), -(-q.shape[2] // BLOCK)))
    attention.bias, attention.bias_stride = bias.data_ptr(), bias.stride(0)
    problem.from_content, problem.out = from_content.data_ptr(), weights_out.data_ptr()
    problem.by_distance = by_distance.data_ptr()
    return problem
