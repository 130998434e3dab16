"""The C++ kernel of attention with a bias by distance, with an optional rotation or other terms."""

import ctypes
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.core.dropout import Drop
from pe_lab.kernels.cpu import build
from pe_lab.kernels.cpu.ctypes_abi import (
    Dropout,
    Rotary,
    Strided,
    address,
    by_token,
    call,
    check,
    contiguous_rows,
    thirds,
)
from pe_lab.kernels.requests import Distance, NearFar
from pe_lab.pe.functional import Rotation

BLOCK = 64
# Work is split into about this many parts, whatever the number of threads, so that results do not
# depend on it.
PARTS = 16

TABLES = ("key_table", "query_table", "value_table")


class Problem(ctypes.Structure):
    """distance_problem.h."""

    _fields_ = (
        ("fork", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("threads", "batch", "heads", "queries", "keys")),
        ("width", ctypes.c_int64),
        ("parts", ctypes.c_int64),
        ("softmax_scale", ctypes.c_double),
        ("drop", Dropout),
        *((name, Strided) for name in ("q", "k", "v", "out")),
        ("largest", ctypes.c_void_p),
        ("sum", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("bias_stride", ctypes.c_int64),
        *((name, Rotary) for name in ("rotary_q", "rotary_k")),
        *((name, Strided) for name in ("grad_out", "grad_q", "grad_k", "grad_v")),
        ("grad_bias", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("kept", "pairs")),
        *((name, Strided) for name in TABLES),
        *((name, ctypes.c_void_p) for name in ("grad_kept", "grad_pairs")),
        *((f"grad_{name}", Strided) for name in TABLES),
        *((name, ctypes.c_void_p) for name in ("products", "diagonal")),
        *((name, ctypes.c_void_p) for name in ("grad_products", "grad_diagonal")),
        ("near", ctypes.c_int64),
        *((name, Rotary) for name in ("far_q", "far_k")),
        ("remainder", ctypes.c_int64),
    )


def attend(request: Distance | NearFar) -> Tensor | None:
    """The kernel of ``Distance`` and ``NearFar``, (B, H, T, D). Memory grows with T + S beside what
    is passed in; the backward pass recomputes the weights. float32 and float64; tensors with a
    contiguous last dimension are not copied. None where a gradient is needed that it has not: of
    the angles, and of ``NearFar``.
    """
    rotation, terms, factors = request.rotation, _checked_terms(request), None
    if rotation is not None:
        without = [rotation.q, rotation.k]
        if isinstance(request, NearFar):
            without += [request.q, request.k, request.v]
        if torch.is_grad_enabled() and any(x.requires_grad for x in without):
            return None
        factors = RotaryFactors.of(request, rotation)
    return _Distance.apply(request.drop, factors, request.q, request.k, request.v, *terms)


class RotaryFactors(NamedTuple):
    """Real factors of queries and keys, as rotary.h reads them; and those of far ones, from the
    distance ``near`` on."""

    q: Tensor
    k: Tensor
    halves: bool
    near: int = 0
    far_q: Tensor | None = None
    far_k: Tensor | None = None

    @classmethod
    def of(cls, request: Distance | NearFar, rotation: Rotation) -> "RotaryFactors":
        q, k, halves = request.q, request.k, rotation.halves

        def real(factors: Tensor, x: Tensor) -> Tensor:
            factors = factors.to(x.dtype.to_complex())
            if halves:
                return torch.cat((factors.real, factors.imag), -1).expand(x.shape)
            return torch.view_as_real(factors.contiguous()).flatten(-2).expand(x.shape)

        both = real(rotation.q, q), real(rotation.k, k), halves
        if isinstance(request, Distance):
            return cls(*both)
        far_k = None if request.far_k is None else real(request.far_k, k)
        return cls(*both, min(request.near, k.shape[2]), real(request.far_q, q), far_k)


def _checked_terms(request: Distance | NearFar) -> list[Tensor | None]:
    """Bias, kept, bias of pairs, and the tables of keys, queries and values."""
    if isinstance(request, NearFar):
        check(request)
        return [None] * 6
    q, k = request.q, request.k
    (b, h, t, d), s = q.shape, k.shape[2]

    def first(x: Tensor | None) -> Tensor | None:
        # Further distances do not occur.
        return None if x is None else (x if x.shape[1] == s else x[:, :s]).to(q.dtype)

    terms = {
        "bias": (first(request.bias_HN), (h, s)),
        "kept": (request.kept_BHS, (b, h, s)),
        "bias of pairs": (request.bias_HTS, (h, t, s)),
        "key table": (first(request.key_HND), (h, s, d)),
        "query table": (first(request.query_HND), (h, s, d)),
        "value table": (first(request.value_HND), (h, s, d)),
    }
    check(request, **terms)
    return [x for x, _ in terms.values()]


class _Distance(torch.autograd.Function):
    """Arguments: dropout, rotation, q, k, v, and the terms."""

    @staticmethod
    def forward(
        ctx: Any, drop: Drop | None, factors: RotaryFactors | None, *inputs: Tensor | None
    ) -> Tensor:
        q, k, v, bias, kept, pairs, *tables = (
            None if x is None else contiguous_rows(x) for x in inputs
        )
        assert q is not None
        if kept is not None:
            kept = kept.contiguous()
        if pairs is not None:
            pairs = _by_key(pairs)
        out = by_token(*q.shape, like=q)
        statistics = q.new_empty(2, *q.shape[:-1])
        tensors = (q, k, v, bias, kept, pairs, *tables)
        problem = _problem(tensors, factors, drop, out, statistics)
        call("distance", "distance_forward", q.dtype, problem)
        ctx.save_for_backward(*tensors, out, statistics)
        ctx.factors, ctx.drop = factors, drop
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, statistics = ctx.saved_tensors
        q, k, v, _, kept, pairs, *_ = tensors
        grad_out = contiguous_rows(grad_out)
        problem = _problem(tensors, ctx.factors, ctx.drop, out, statistics)
        problem.grad_out = Strided(grad_out)
        needed = ctx.needs_input_grad[2:]
        grad_q: Tensor | None
        grad_k: Tensor | None
        grad_v: Tensor | None
        if problem.parts == 1 and q.shape == k.shape and all(needed[:3]):
            one, grad_k, grad_v = thirds(q)
            grad_q = one[None]
        else:
            grad_q = by_token(problem.parts, *q.shape, like=q) if needed[0] else None
            grad_k = by_token(*k.shape, like=k) if needed[1] else None
            grad_v = by_token(*v.shape, like=v) if needed[2] else None
        problem.grad_q, problem.grad_k = Strided(grad_q), Strided(grad_k)
        problem.grad_v = Strided(grad_v)
        grad_bias = grad_kept = grad_pairs = None
        if needed[3]:
            grad_bias = q.new_empty(problem.parts, *k.shape[:-1])
            problem.grad_bias = grad_bias.data_ptr()
        if needed[4]:
            grad_kept = torch.empty_like(kept)
            problem.grad_kept = grad_kept.data_ptr()
        if needed[5]:
            grad_pairs = torch.zeros_like(pairs)
            problem.grad_pairs = grad_pairs.data_ptr()
        grad_tables: list[Tensor | None] = [None] * len(TABLES)
        for i, name in enumerate(TABLES):
            if needed[6 + i]:
                grad_tables[i] = grad = q.new_empty(problem.parts, *k.shape)
                setattr(problem, f"grad_{name}", Strided(grad))
        call("distance", "distance_backward", q.dtype, problem)
        if grad_q is not None:
            grad_q = grad_q[0] if problem.parts == 1 else grad_q.sum(0)
        if grad_bias is not None:
            grad_bias = grad_bias.sum((0, 1))
        if grad_pairs is not None:
            grad_pairs = grad_pairs[..., : q.shape[2]].mT
        sums = [None if grad is None else grad.sum((0, 1)) for grad in grad_tables]
        return None, None, grad_q, grad_k, grad_v, grad_bias, grad_kept, grad_pairs, *sums


def _by_key(bias_HTS: Tensor) -> Tensor:
    """(H, S, T), T rounded up to whole blocks: the kernel reads a bias for neighbouring queries."""
    h, t, s = bias_HTS.shape
    padded = bias_HTS.new_zeros(h, s, -(-t // BLOCK) * BLOCK)
    padded[..., :t] = bias_HTS.mT
    return padded


def problem_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    drop: Drop | None,
    out: Tensor,
    statistics: Tensor | None = None,
) -> Problem:
    """What every pass reads.

    Args:
        statistics: of each query's logits, the largest and the sum of the powers, (2, B, H, T).
    """
    b, h, t, d = q.shape
    parts = max(1, min(-(-PARTS // max(b * h, 1)), -(-t // BLOCK)))
    problem = Problem(
        build.fork(),
        torch.get_num_threads(),
        *(b, h, t, k.shape[-2], d, parts),
        1 / math.sqrt(d),
        Dropout(drop),
    )
    problem.q, problem.k, problem.v, problem.out = Strided(q), Strided(k), Strided(v), Strided(out)
    if statistics is not None:
        problem.largest, problem.sum = statistics[0].data_ptr(), statistics[1].data_ptr()
    return problem


def _problem(
    tensors: Sequence[Tensor | None],
    factors: RotaryFactors | None,
    drop: Drop | None,
    out: Tensor,
    statistics: Tensor,
) -> Problem:
    q, k, v, bias, kept, pairs, *tables = tensors
    assert q is not None
    assert k is not None
    assert v is not None
    problem = problem_of(q, k, v, drop, out, statistics)
    if bias is not None:
        problem.bias, problem.bias_stride = bias.data_ptr(), bias.stride(0)
    problem.kept = None if kept is None else address(kept)
    problem.pairs = None if pairs is None else address(pairs)
    for name, table in zip(TABLES, tables, strict=True):
        setattr(problem, name, Strided(table))
    if factors is not None:
        halves, problem.near = factors.halves, factors.near
        problem.rotary_q, problem.rotary_k = Rotary(factors.q, halves), Rotary(factors.k, halves)
        problem.far_q, problem.far_k = Rotary(factors.far_q, halves), Rotary(factors.far_k, halves)
    return problem
