"""The C++ kernels of PaTH's attention.

One computes what happens within chunks of tokens. The kernel of distance.py computes the rest, with
queries that change on the way.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.core.dropout import Drop
from pe_lab.kernels.cpu import build
from pe_lab.kernels.cpu.ctypes_abi import (
    Strided,
    address,
    by_token,
    call,
    check,
    contiguous_rows,
)
from pe_lab.kernels.cpu.distance import Problem, problem_of
from pe_lab.kernels.requests import Path

CHUNK = 16
"""Tokens, as in path_chunk.h and distance_carried.h."""


def attend(request: Path) -> Tensor:
    """The kernel of ``Path``, (B, H, T, D). Memory grows with T + S.

    One kernel computes, as ``path_logits``, what each query is at the edge of its chunk and each
    key at that of its own, the matrix by which a chunk multiplies the queries that pass it, and the
    logits within; the one by distance does the rest.
    """
    q, k, v, w, beta, kept = (
        request.q, request.k, request.v, request.w_BHSD, request.beta_BHS, request.kept_BHS
    )  # fmt: skip
    of_keys = tuple(k.shape[:3])
    check(request, w=(w, tuple(k.shape)), beta=(beta, of_keys), kept=(kept, of_keys))
    if q.numel() == 0:
        others = (x for x in (k, v, w, beta, kept) if x is not None)
        return 0 * sum((x.sum() for x in others), q)
    before = (k.shape[2] - q.shape[2]) % CHUNK
    within = WithinChunks.apply(q, k, w, beta)
    edge_q, edge_k, products, logits = within
    out: Tensor = _Path.apply(edge_q, edge_k, v, products, logits, kept, request.drop)
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


class _ChunkProblem(ctypes.Structure):
    """path_chunk.h."""

    _fields_ = (
        ("fork", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("threads", "batch", "heads", "queries", "keys")),
        *((name, ctypes.c_int64) for name in ("width", "first")),
        ("scale", ctypes.c_double),
        *((name, Strided) for name in ("q", "k", "w")),
        ("beta", ctypes.c_void_p),
        *((name, Strided) for name in ("edge_q", "edge_k")),
        *((name, ctypes.c_void_p) for name in ("products", "logits")),
        *((name, Strided) for name in ("grad_q", "grad_k", "grad_w")),
        ("grad_beta", ctypes.c_void_p),
    )


class WithinChunks(torch.autograd.Function):
    """Of q (B, H, T, D), k, w and beta, T the last of S tokens: queries from the chunk of the first
    one on, divided by sqrt(D), and keys, both at the edges of their chunks; the products (B, H,
    chunks, D, D) of the reflections of each chunk; and the logits (B, H, queries, CHUNK) within."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, w: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        q, k, w = contiguous_rows(q), contiguous_rows(k), contiguous_rows(w)
        beta = beta.contiguous()
        (b, h, t, d), s = q.shape, k.shape[2]
        queries = t + (s - t) % CHUNK
        edge_q, edge_k = by_token(b, h, queries, d, like=q), by_token(*k.shape, like=k)
        products = q.new_empty(b, h, -(-s // CHUNK), d, d)
        logits = q.new_empty(b, h, queries, CHUNK)
        problem = _chunk_problem(q, k, w, beta, edge_q, edge_k, products, logits)
        call("path_chunks", "path_chunks", q.dtype, problem)
        ctx.save_for_backward(q, k, w, beta)
        return edge_q, edge_k, products, logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        q, k, w, beta = ctx.saved_tensors
        edge_q, edge_k = (contiguous_rows(x) for x in grads[:2])
        products, logits = (x.contiguous() for x in grads[2:])
        problem = _chunk_problem(q, k, w, beta, edge_q, edge_k, products, logits)
        grad_q, grad_k, grad_w = (by_token(*x.shape, like=x) for x in (q, k, w))
        grad_beta = torch.empty_like(beta)
        problem.grad_q, problem.grad_k = Strided(grad_q), Strided(grad_k)
        problem.grad_w, problem.grad_beta = Strided(grad_w), grad_beta.data_ptr()
        call("path_chunks", "path_chunks", q.dtype, problem)
        return grad_q, grad_k, grad_w, grad_beta


def _chunk_problem(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    beta: Tensor,
    edge_q: Tensor,
    edge_k: Tensor,
    products: Tensor,
    logits: Tensor,
) -> _ChunkProblem:
    (b, h, t, d), s = q.shape, k.shape[2]
    problem = _ChunkProblem(
        build.fork(), torch.get_num_threads(), b, h, t, s, d, s - edge_q.shape[2], d**-0.5
    )
    problem.q, problem.k, problem.w = Strided(q), Strided(k), Strided(w)
    problem.edge_q, problem.edge_k = Strided(edge_q), Strided(edge_k)
    problem.beta, problem.products = beta.data_ptr(), products.data_ptr()
    problem.logits = logits.data_ptr()
    return problem
