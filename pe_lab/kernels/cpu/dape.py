"""The C++ kernel of DAPE's attention."""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.core.dropout import Drop
from pe_lab.kernels.cpu.ctypes_abi import Strided, by_token, call, check, contiguous_rows
from pe_lab.kernels.cpu.distance import BLOCK, PARTS, Problem, problem_of
from pe_lab.kernels.requests import Dape

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


def attend(request: Dape) -> Tensor | None:
    """The kernel of ``Dape``, (B, H, T, D). Memory grows with T + S. None for a number of heads
    that it is not compiled for."""
    (h, t), s, w = request.q.shape[1:3], request.k.shape[2], len(request.out_WH)
    if h not in HEADS or 0 in (len(request.q), t):
        return None
    of = {
        "bias": (request.bias_HN[:, :s], (h, s)),
        "from_content": (request.from_content_WH, (w, h)),
        "by_distance": (request.by_distance_WN[:, :s], (w, s)),
        "out": (request.out_WH, (w, h)),
    }
    check(request, **of)
    weights = (x.contiguous() for x, _ in of.values())
    return _Dape.apply(request.drop, request.q, request.k, request.v, *weights)


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
