"""The C++ kernels of PaTH's attention.

One computes what happens within chunks of tokens. The kernel of distance.py computes the rest, with
queries that change on the way.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.kernels.cpu.call import Problem, Strided, by_token, call, check, contiguous_rows
from pe_lab.kernels.cpu.distance import CARRIED
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
    edge_q, edge_k, products, logits = WithinChunks.apply(q, k, w, beta)
    of = {"kept": kept, "products": products, "diagonal": logits}
    out = CARRIED.attend((request.drop, None), q=edge_q, k=edge_k, v=v, **of)
    if before == 0:
        return out
    # Laid out by tokens, as the output projection reads it.
    return out[:, :, before:].transpose(1, 2).contiguous().transpose(1, 2)


class _ChunkProblem(Problem):
    """path_chunk.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "heads", "queries", "keys", "width")),
        ("first", ctypes.c_int64),
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
        _run(q, k, w, beta, edge_q=edge_q, edge_k=edge_k, products=products, logits=logits)
        ctx.save_for_backward(q, k, w, beta)
        return edge_q, edge_k, products, logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        q, k, w, beta = ctx.saved_tensors
        edge_q, edge_k = (contiguous_rows(x) for x in grads[:2])
        products, logits = (x.contiguous() for x in grads[2:])
        grad_q, grad_k, grad_w = (by_token(*x.shape, like=x) for x in (q, k, w))
        grad_beta = torch.empty_like(beta)
        _run(
            q, k, w, beta, edge_q=edge_q, edge_k=edge_k, products=products, logits=logits,
            grad_q=grad_q, grad_k=grad_k, grad_w=grad_w, grad_beta=grad_beta,
        )  # fmt: skip
        return grad_q, grad_k, grad_w, grad_beta


def _run(q: Tensor, k: Tensor, w: Tensor, beta: Tensor, **others: Tensor) -> None:
    (b, h, t, d), s = q.shape, k.shape[2]
    problem = _ChunkProblem(b, h, t, s, d, s - others["edge_q"].shape[2], d**-0.5)
    problem.fill(q=q, k=k, w=w, beta=beta, **others)
    call("path_chunks", "path_chunks", q.dtype, problem)
