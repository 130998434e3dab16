"""The C++ kernel of stick-breaking attention."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.core.dropout import Drop
from pe_lab.kernels.cpu.ctypes_abi import Strided, by_token, call, check, contiguous_rows, thirds
from pe_lab.kernels.cpu.distance import problem_of
from pe_lab.kernels.requests import StickBreaking


def attend(request: StickBreaking) -> Tensor:
    """The kernel of ``StickBreaking``, (B, H, T, D). Memory grows with T + S; the backward pass
    recomputes the weights. float32 and float64; tensors with a contiguous last dimension are not
    copied."""
    check(request)
    return _StickBreaking.apply(request.q, request.k, request.v, request.remainder, request.drop)


class _StickBreaking(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, remainder: bool, drop: Drop | None
    ) -> Tensor:
        q, k, v = contiguous_rows(q), contiguous_rows(k), contiguous_rows(v)
        out = by_token(*q.shape, like=q)
        problem = problem_of(q, k, v, drop, out)
        problem.remainder = remainder
        call("stick_breaking", "stick_breaking_forward", q.dtype, problem)
        ctx.save_for_backward(q, k, v, out)
        ctx.remainder, ctx.drop = remainder, drop
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out = ctx.saved_tensors
        grad_out = contiguous_rows(grad_out)
        problem = problem_of(q, k, v, ctx.drop, out)
        problem.remainder, problem.grad_out = ctx.remainder, Strided(grad_out)
        if problem.parts == 1 and q.shape == k.shape:
            grad_q, grad_k, grad_v = thirds(q)
            grad_k, grad_v = grad_k[None], grad_v[None]
        else:
            grad_q = by_token(*q.shape, like=q)
            grad_k, grad_v = (by_token(problem.parts, *k.shape, like=k) for _ in range(2))
        problem.grad_q = Strided(grad_q)
        problem.grad_k, problem.grad_v = Strided(grad_k), Strided(grad_v)
        call("stick_breaking", "stick_breaking_backward", q.dtype, problem)
        sums = (x[0] if len(x) == 1 else x.sum(0) for x in (grad_k, grad_v))
        return grad_q, *sums, None, None
