"""The C++ kernel of what PaTH computes within chunks of tokens."""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.kernels.cpu import build
from pe_lab.kernels.cpu.ctypes_abi import Strided, by_token, call, contiguous_rows

CHUNK = 16
"""Tokens, as in path_chunk.h and distance_carried.h."""


class _Problem(ctypes.Structure):
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
        problem = _problem(q, k, w, beta, edge_q, edge_k, products, logits)
        call("path_chunks", "path_chunks", q.dtype, problem)
        ctx.save_for_backward(q, k, w, beta)
        return edge_q, edge_k, products, logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        q, k, w, beta = ctx.saved_tensors
        edge_q, edge_k = (contiguous_rows(x) for x in grads[:2])
        products, logits = (x.contiguous() for x in grads[2:])
        problem = _problem(q, k, w, beta, edge_q, edge_k, products, logits)
        grad_q, grad_k, grad_w = (by_token(*x.shape, like=x) for x in (q, k, w))
        grad_beta = torch.empty_like(beta)
        problem.grad_q, problem.grad_k = Strided(grad_q), Strided(grad_k)
        problem.grad_w, problem.grad_beta = Strided(grad_w), grad_beta.data_ptr()
        call("path_chunks", "path_chunks", q.dtype, problem)
        return grad_q, grad_k, grad_w, grad_beta


def _problem(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    beta: Tensor,
    edge_q: Tensor,
    edge_k: Tensor,
    products: Tensor,
    logits: Tensor,
) -> _Problem:
    (b, h, t, d), s = q.shape, k.shape[2]
    problem = _Problem(
        build.fork(), torch.get_num_threads(), b, h, t, s, d, s - edge_q.shape[2], d**-0.5
    )
    problem.q, problem.k, problem.w = Strided(q), Strided(k), Strided(w)
    problem.edge_q, problem.edge_k = Strided(edge_q), Strided(edge_k)
    problem.beta, problem.products = beta.data_ptr(), products.data_ptr()
    problem.logits = logits.data_ptr()
    return problem
