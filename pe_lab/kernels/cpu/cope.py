"""The C++ kernel of attention with contextual positions."""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.core.dropout import Drop
from pe_lab.kernels.cpu import build
from pe_lab.kernels.cpu.ctypes_abi import (
    Dropout,
    Strided,
    by_token,
    call,
    check,
    contiguous_rows,
    thirds,
)
from pe_lab.kernels.requests import Cope

BLOCK = 32
# Work is split into about this many parts, and the table's gradient summed in this many chunks,
# whatever the number of threads, so that results do not depend on it. Each part holds gradients of
# the keys and each chunk one of the table; more of them would take memory that grows with the
# length.
PARTS, CHUNKS = 8, 32


class Problem(ctypes.Structure):
    """cope_problem.h."""

    _fields_ = (
        ("fork", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("threads", "batch", "heads", "queries", "keys")),
        *((name, ctypes.c_int64) for name in ("width", "positions", "parts", "chunks")),
        ("softmax_scale", ctypes.c_double),
        ("position_scale", ctypes.c_double),
        ("drop", Dropout),
        *((name, Strided) for name in ("q", "k", "v", "gate_q", "gate_k", "table", "out")),
        ("log_sum", ctypes.c_void_p),
        *((name, Strided) for name in ("grad_out", "grad_q", "grad_k", "grad_v")),
        *((name, Strided) for name in ("grad_gate_q", "grad_gate_k", "grad_table")),
    )


def _problem(tensors: Sequence[Any], position_scale: float, drop: Drop | None) -> Problem:
    """The arguments of the kernels, without results. q, k, v, gate_q, gate_k, table; a gate is None
    where it is the query or the key itself."""
    q, k, *_, table = tensors
    b, h, t, d = q.shape
    parts = max(1, min(-(-PARTS // max(b * h, 1)), -(-t // BLOCK)))
    problem = Problem(
        build.fork(),
        torch.get_num_threads(),
        *(b, h, t, k.shape[-2], d, len(table)),
        *(parts, min(CHUNKS, b * h * parts)),
        1 / math.sqrt(d),
        position_scale,
        Dropout(drop),
    )
    for name, x in zip(("q", "k", "v", "gate_q", "gate_k"), tensors, strict=False):
        setattr(problem, name, Strided(x))
    problem.table = Strided(table[None])
    return problem


class _Cope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, ctx.position_scale, ctx.drop = inputs
        tensors = [None if x is None else contiguous_rows(x) for x in tensors]
        q = tensors[0]
        out = by_token(*q.shape, like=q)
        log_sum = q.new_empty(q.shape[:-1])
        problem = _problem(tensors, ctx.position_scale, ctx.drop)
        problem.out, problem.log_sum = Strided(out), log_sum.data_ptr()
        call("cope", "cope_forward", q.dtype, problem)
        ctx.save_for_backward(*tensors, out, log_sum)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, log_sum = ctx.saved_tensors
        q, k, _, gate_q, gate_k, table = tensors
        grad_out = contiguous_rows(grad_out)
        problem = _problem(tensors, ctx.position_scale, ctx.drop)
        problem.out, problem.log_sum = Strided(out), log_sum.data_ptr()
        problem.grad_out = Strided(grad_out)

        def key_gradient() -> Tensor:
            return by_token(problem.parts, *k.shape, like=k)

        separate_gates = gate_q is not None or gate_k is not None
        if problem.parts == 1 and q.shape == k.shape:
            grad_q, grad_k, grad_v = thirds(q)
            grads = {"grad_q": grad_q, "grad_k": grad_k[None], "grad_v": grad_v[None]}
        else:
            grad_q = by_token(*q.shape, like=q)
            grads = {"grad_q": grad_q, "grad_k": key_gradient(), "grad_v": key_gradient()}
        if gate_q is not None:
            grads["grad_gate_q"] = by_token(*q.shape, like=q)
        if separate_gates:
            grads["grad_gate_k"] = key_gradient()
        grads["grad_table"] = q.new_empty(problem.chunks, 1, 1, *table.shape)
        for name, grad in grads.items():
            setattr(problem, name, Strided(grad))
        call("cope", "cope_backward", q.dtype, problem)
        for name in ("grad_k", "grad_v", "grad_gate_k"):
            if name in grads:
                parts = grads[name]
                grads[name] = parts[0] if len(parts) == 1 else parts.sum(0)
        if separate_gates and gate_k is None:
            grads["grad_k"] += grads.pop("grad_gate_k")
        return (
            grads["grad_q"],
            grads["grad_k"],
            grads["grad_v"],
            grads.get("grad_gate_q"),
            grads.get("grad_gate_k"),
            grads["grad_table"].sum((0, 1, 2)),
            None,
            None,
        )


def attend(request: Cope) -> Tensor:
    """The kernel of ``Cope``, (B, H, T, D). Memory grows with T + S + N; the backward pass
    recomputes the weights. float32 and float64; tensors with a contiguous last dimension are not
    copied."""
    q, k, table = request.q, request.k, request.table_ND
    check(
        request,
        gate_q=(request.gate_q, tuple(q.shape)),
        gate_k=(request.gate_k, tuple(k.shape)),
        table=(table, (max(len(table), 1), k.shape[-1])),
    )
    gate_q = None if request.gate_q is q else request.gate_q
    gate_k = None if request.gate_k is k else request.gate_k
    # S gates count to S at most.
    table, scale = table[: k.shape[-2] + 1], request.position_scale
    return _Cope.apply(q, k, request.v, gate_q, gate_k, table, scale, request.drop)
