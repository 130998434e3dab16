"""The C++ kernel of PaTH's attention: that of distance.py, with queries that change on the way."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.core.dropout import Drop
from pe_lab.kernels.cpu.ctypes_abi import (
    Strided,
    address,
    by_token,
    call,
    check,
    contiguous_rows,
)
from pe_lab.kernels.cpu.distance import Problem, problem_of
from pe_lab.kernels.cpu.path_chunks import CHUNK, WithinChunks


def path(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    w_BHSD: Tensor,
    beta_BHS: Tensor,
    kept_BHS: Tensor | None,
    drop: Drop | None,
) -> Tensor:
    """Causal attention with PaTH's logits (pe/path.py), (B, H, T, D).

    logits = k_j^T H_(j+1) .. H_i q_i / sqrt(D) + kept_i - kept_j, H_t = I - beta_t w_t w_t^T. The T
    queries are the last of the S tokens. Memory grows with T + S.

    One kernel computes, as ``path_logits``, what each query is at the edge of its chunk and each
    key at that of its own, the matrix by which a chunk multiplies the queries that pass it, and the
    logits within; the one by distance does the rest.
    """
    shapes = {"v": (v_BHSD, tuple(k_BHSD.shape)), "w": (w_BHSD, tuple(k_BHSD.shape))}
    shapes["beta"] = beta_BHS, tuple(k_BHSD.shape[:3])
    if kept_BHS is not None:
        shapes["kept"] = kept_BHS, tuple(k_BHSD.shape[:3])
    check(q_BHTD, k_BHSD, **shapes)
    t, s = q_BHTD.shape[2], k_BHSD.shape[2]
    if t == 0 or q_BHTD.numel() == 0:
        others = (x for x in (k_BHSD, v_BHSD, w_BHSD, beta_BHS, kept_BHS) if x is not None)
        return 0 * sum((x.sum() for x in others), q_BHTD)
    before = (s - t) % CHUNK
    within = WithinChunks.apply(q_BHTD, k_BHSD, w_BHSD, beta_BHS)  # type: ignore[no-untyped-call]
    edge_q, edge_k, products, logits = within
    out: Tensor = _Path.apply(  # type: ignore[no-untyped-call]
        edge_q, edge_k, v_BHSD, products, logits, kept_BHS, drop
    )
    if before == 0:
        return out
    # Laid out by tokens, as the output projection reads it.
    return out[:, :, before:].transpose(1, 2).contiguous().transpose(1, 2)


class _Path(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        products: Tensor,
        diagonal: Tensor,
        kept: Tensor | None,
        drop: Drop | None,
    ) -> Tensor:
        """q, k, products and diagonal as of ``WithinChunks``."""
        q, k, v = contiguous_rows(q), contiguous_rows(k), contiguous_rows(v)
        products, diagonal = products.contiguous(), diagonal.contiguous()
        kept = None if kept is None else kept.contiguous()
        out = by_token(*q.shape, like=q)
        statistics = q.new_empty(2, *q.shape[:-1])
        tensors = q, k, v, products, diagonal, kept, out, statistics
        call("distance", "distance_forward", q.dtype, _problem(tensors, drop))
        ctx.save_for_backward(*tensors)
        ctx.drop = drop
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, products, diagonal, kept, *_ = ctx.saved_tensors
        problem = _problem(ctx.saved_tensors, ctx.drop)
        grad_out = contiguous_rows(grad_out)
        grad_q = by_token(problem.parts, *q.shape, like=q)
        grad_k, grad_v = by_token(*k.shape, like=k), by_token(*v.shape, like=v)
        grad_products = products.new_empty(problem.parts, *products.shape)
        grad_diagonal = torch.empty_like(diagonal)
        problem.grad_out, problem.grad_q = Strided(grad_out), Strided(grad_q)
        problem.grad_k, problem.grad_v = Strided(grad_k), Strided(grad_v)
        problem.grad_products = grad_products.data_ptr()
        problem.grad_diagonal = grad_diagonal.data_ptr()
        grad_kept = None if kept is None else torch.empty_like(kept)
        problem.grad_kept = None if grad_kept is None else address(grad_kept)
        call("distance", "distance_backward", q.dtype, problem)
        sums = grad_products.sum(0), grad_diagonal, grad_kept
        return grad_q.sum(0), grad_k, grad_v, *sums, None


def _problem(tensors: Sequence[Any], drop: Drop | None) -> Problem:
    q, k, v, products, diagonal, kept, out, statistics = tensors
    problem = problem_of(q, k, v, drop, out, statistics)
    # Queries come divided by sqrt(D).
    problem.softmax_scale = 1
    problem.products, problem.diagonal = products.data_ptr(), diagonal.data_ptr()
    problem.kept = None if kept is None else address(kept)
    return problem
