"""The C++ kernels of PaTH's attention.

One computes what happens within chunks of tokens. The kernel of distance.py computes the rest, with
queries that change on the way.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.kernels import build
from pe_lab.kernels.call import Dropout, Problem, Strided, by_token, call, contiguous_rows
from pe_lab.kernels.distance import DISTANCE
from pe_lab.pe.base import AttentionInputs
from pe_lab.pe.path import PaTH

CHUNK = 16
"""Tokens, as in path_chunk.h and distance_carried.h."""


def attend(
    encoding: PaTH, q: Tensor, k: Tensor, inputs: AttentionInputs, drop: Dropout
) -> Tensor | None:
    """The averaged values, (B, H, T, D).

    One kernel computes, as ``path_logits``, what each query is at the edge of its chunk and each
    key at that of its own, the matrix by which a chunk multiplies the queries that pass it, and the
    logits within; the one by distance does the rest.
    """
    if build.library("path_chunks") is None:
        return None
    w, beta = encoding.reflections(inputs, q.dtype)
    kept, v = encoding.log_decay(inputs, q.dtype), inputs.v_BHSD
    edge_q, edge_k, products, logits = WithinChunks.apply(q, k, w, beta)
    out = DISTANCE.attend(
        drop, q=edge_q, k=edge_k, v=v, kept=kept, products=products, diagonal=logits
    )
    before = (k.shape[2] - q.shape[2]) % CHUNK
    if before == 0 or out is None:
        return out
    # Laid out by tokens, as the output projection reads it.
    return out[:, :, before:].transpose(1, 2).contiguous().transpose(1, 2)


class ChunkProblem(Problem):
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
        run(q, k, w, beta, edge_q=edge_q, edge_k=edge_k, products=products, logits=logits)
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
        run(
            q, k, w, beta, edge_q=edge_q, edge_k=edge_k, products=products, logits=logits,
            grad_q=grad_q, grad_k=grad_k, grad_w=grad_w, grad_beta=grad_beta,
        )  # fmt: skip
        return grad_q, grad_k, grad_w, grad_beta


def run(q: Tensor, k: Tensor, w: Tensor, beta: Tensor, **others: Tensor) -> None:
    (b, h, t, d), s = q.shape, k.shape[2]
    problem = ChunkProblem(b, h, t, s, d, s - others["edge_q"].shape[2], d**-0.5)
    problem.fill(q=q, k=k, w=w, beta=beta, **others)
    call("path_chunks", "path_chunks", q.dtype, problem)
