"""Our C++ kernels, called: attention with a bias by distance, and dropout, on the CPU."""

import ctypes
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.common.dropout import Drop
from pe_lab.kernels import build
from pe_lab.kernels.calling import (
    Dropout,
    Strided,
    Turn,
    by_token,
    call,
    check,
    contiguous_rows,
    thirds,
)
from pe_lab.kernels.turns import Turns, real

BLOCK = 64
# Work is cut into about so many parts, whatever the number of threads: results do not depend on it.
PARTS = 16


class Distance(ctypes.Structure):
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
        *((name, Turn) for name in ("turn_q", "turn_k")),
        *((name, Strided) for name in ("grad_out", "grad_q", "grad_k", "grad_v")),
        ("grad_bias", ctypes.c_void_p),
    )


class Dropped(ctypes.Structure):
    """dropped.cpp."""

    _fields_ = (
        ("fork", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("threads", "rows", "columns")),
        ("drop", Dropout),
        *((name, ctypes.c_void_p) for name in ("places", "x", "residual", "out")),
    )


def _problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    turns: tuple[Tensor, Tensor, bool] | None,
    drop: Drop | None,
) -> Distance:
    b, h, t, d = q.shape
    parts = max(1, min(-(-PARTS // max(b * h, 1)), -(-t // BLOCK)))
    problem = Distance(
        build.fork(),
        torch.get_num_threads(),
        *(b, h, t, k.shape[-2], d, parts),
        1 / math.sqrt(d),
        Dropout(drop),
    )
    problem.q, problem.k, problem.v = Strided(q), Strided(k), Strided(v)
    if bias is not None:
        problem.bias, problem.bias_stride = bias.data_ptr(), bias.stride(0)
    if turns is not None:
        turn_q, turn_k, halves = turns
        problem.turn_q, problem.turn_k = Turn(turn_q, halves), Turn(turn_k, halves)
    return problem


class _Distance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        drop: Drop | None,
        turns: tuple[Tensor, Tensor, bool] | None = None,
    ) -> Tensor:
        q, k, v = contiguous_rows(q), contiguous_rows(k), contiguous_rows(v)
        bias = None if bias is None else contiguous_rows(bias)
        out = by_token(*q.shape, like=q)
        # Of each query's logits: the largest, and the sum of the powers.
        seen = q.new_empty(2, *q.shape[:-1])
        problem = _problem(q, k, v, bias, turns, drop)
        problem.out = Strided(out)
        problem.largest, problem.sum = seen[0].data_ptr(), seen[1].data_ptr()
        call("distance", "distance_forward", q.dtype, problem)
        ctx.save_for_backward(q, k, v, bias, out, seen)
        ctx.turns, ctx.drop = turns, drop
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out, seen = ctx.saved_tensors
        grad_out = contiguous_rows(grad_out)
        problem = _problem(q, k, v, bias, ctx.turns, ctx.drop)
        problem.out = Strided(out)
        problem.largest, problem.sum = seen[0].data_ptr(), seen[1].data_ptr()
        problem.grad_out = Strided(grad_out)
        wanted = ctx.needs_input_grad
        grad_q: Tensor | None
        grad_k: Tensor | None
        grad_v: Tensor | None
        if problem.parts == 1 and q.shape == k.shape and all(wanted[:3]):
            one, grad_k, grad_v = thirds(q)
            grad_q = one[None]
        else:
            grad_q = by_token(problem.parts, *q.shape, like=q) if wanted[0] else None
            grad_k = by_token(*k.shape, like=k) if wanted[1] else None
            grad_v = by_token(*v.shape, like=v) if wanted[2] else None
        problem.grad_q, problem.grad_k = Strided(grad_q), Strided(grad_k)
        problem.grad_v = Strided(grad_v)
        grad_bias = None
        if wanted[3]:
            grad_bias = q.new_empty(problem.parts, *k.shape[:-1])
            problem.grad_bias = grad_bias.data_ptr()
        call("distance", "distance_backward", q.dtype, problem)
        if grad_q is not None:
            grad_q = grad_q[0] if problem.parts == 1 else grad_q.sum(0)
        if grad_bias is not None:
            grad_bias = torch.nn.functional.pad(
                grad_bias.sum((0, 1)), (0, bias.shape[-1] - k.shape[-2])
            )
        return grad_q, grad_k, grad_v, grad_bias, None, None


def distance(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    bias_HN: Tensor | None,
    drop: Drop | None,
) -> Tensor:
    """Causal attention, (B, H, T, D): softmax(q.k / sqrt(D) + bias[h, i - j]) @ v.

    The T queries are the last of the S tokens. Memory grows with T + S; the backward pass makes
    the weights again. float32 and float64; tensors with a contiguous last dimension are not copied.
    """
    return turned_distance(q_BHTD, k_BHSD, v_BHSD, bias_HN, None, drop)


def turned_distance(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    bias_HN: Tensor | None,
    turns: Turns | None,
    drop: Drop | None,
) -> Tensor:
    """``distance`` of queries and keys that are turned on the way."""
    others = {"v": (v_BHSD, tuple(k_BHSD.shape))}
    if bias_HN is not None:
        bias_HN = bias_HN.to(q_BHTD.dtype)
        columns = max(bias_HN.shape[-1], k_BHSD.shape[-2])
        others["bias"] = (bias_HN, (q_BHTD.shape[1], columns))
    check(q_BHTD, k_BHSD, **others)
    by = None
    if turns is not None:
        turn_q, turn_k = (
            real(turn.to(x.dtype.to_complex()), turns.halves).expand(x.shape)
            for turn, x in ((turns.q, q_BHTD), (turns.k, k_BHSD))
        )
        by = turn_q, turn_k, turns.halves
    out: Tensor = _Distance.apply(q_BHTD, k_BHSD, v_BHSD, bias_HN, drop, by)  # type: ignore[no-untyped-call]
    return out


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, drop: Drop, places: Tensor | None
    ) -> Tensor:
        ctx.drop = drop
        ctx.save_for_backward(places)
        return _drop(x, residual, drop, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, residual = ctx.needs_input_grad[:2]
        (places,) = ctx.saved_tensors
        return (
            _drop(grad, None, ctx.drop, places) if x else None,
            grad if residual else None,
            None,
            None,
        )


def _drop(x: Tensor, residual: Tensor | None, drop: Drop, places: Tensor | None) -> Tensor:
    x = x.contiguous()
    residual = None if residual is None else residual.contiguous()
    out = torch.empty_like(x)
    columns = x.shape[-1]
    problem = Dropped(
        build.fork(), torch.get_num_threads(), x.numel() // max(columns, 1), columns, Dropout(drop)
    )
    problem.x, problem.out = x.data_ptr(), out.data_ptr()
    problem.residual = None if residual is None else residual.data_ptr()
    problem.places = None if places is None else places.data_ptr()
    call("dropped", "dropped", x.dtype, problem)
    return out


def dropped(
    x: Tensor, drop: Drop, rows: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """``drop(x, rows)``, bit for bit; or ``residual + drop(x, rows)`` in the same pass.

    Args:
        x: (.., C), float32 or float64.
        rows: int64, (..) or what broadcasts to it: where the rows stand, if not in turn.
        residual: (.., C).
    """
    if rows is not None:
        rows = rows.long().expand(x.shape[:-1]).contiguous()
    if residual is not None and (residual.shape, residual.dtype) != (x.shape, x.dtype):
        raise ValueError(
            f"the residual is {tuple(residual.shape)} of {residual.dtype}, what is dropped "
            f"{tuple(x.shape)} of {x.dtype}"
        )
    out: Tensor = _Dropped.apply(x, residual, drop, rows)  # type: ignore[no-untyped-call]
    return out
