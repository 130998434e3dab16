"""Fused bias + dropout + residual + LayerNorm or RMSNorm, where the C++ kernel is available."""

import ctypes
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pe_lab.common.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu import bias_relu, build
from pe_lab.kernels.cpu.ctypes_abi import Dropout, address, call
from pe_lab.kernels.dropout import dropout
from pe_lab.kernels.selfcheck import cpu_kernel_passes

# Gradients of vectors are summed in this many parts, whatever the number of threads, so that
# results do not depend on it.
PARTS = 16
NONE, LAYER, RMS = range(3)


class Problem(ctypes.Structure):
    """add_norm.cpp."""

    _fields_ = (
        ("fork", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("threads", "rows", "columns", "parts", "norm")),
        ("eps", ctypes.c_double),
        ("drop", Dropout),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("row_numbers", "x", "branch", "bias", "sum", "weight", "norm_bias", "out"),
                *("moments", "grad_sum", "grad_out", "grad_x", "grad_branch", "grads"),
            )
        ),
    )


def fused_add_norm(
    x: Tensor,
    branch: Tensor,
    out: nn.Linear,
    norm: nn.Module | None,
    drop: Drop | None,
    rows: Tensor | None = None,
    *,
    up: nn.Linear | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum x + dropout(out(branch)), and this sum normalised (without a norm: itself).

    Args:
        x: (.., E).
        branch: (.., D).
        rows: int64, (..): the numbers of the rows for dropout, if not consecutive.
        up: replaces ``branch`` by ``relu(up(branch))``.
    """
    maps = [p for linear in (out, up) if linear is not None for p in (linear.weight, linear.bias)]
    if branch.shape[:-1] == x.shape[:-1] and supported(x, norm, drop, branch, *maps):
        if up is not None and not bias_relu.available(x.dtype):
            branch, maps = F.relu(up(branch)), maps[:2]
        return _apply(x, norm, drop, rows, branch, *maps)
    branch = out(branch if up is None else F.relu(up(branch)))
    x = x + branch if drop is None else dropout(branch, drop, rows, x)
    return x, x if norm is None else norm(x)


def fused_norm(x: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """x itself and x normalised. The gradients of both are added in one pass."""
    if supported(x, norm, None):
        return _apply(x, norm, None, None)
    return x, norm(x)


def supported(x: Tensor, norm: nn.Module | None, drop: Drop | None, *others: Tensor) -> bool:
    """Whether the kernel may be used on these tensors, and is available."""
    tensors = [x, *others]
    if isinstance(norm, nn.LayerNorm):
        tensors += [norm.weight, norm.bias]
    elif isinstance(norm, nn.RMSNorm):
        tensors.append(norm.weight)
    elif norm is not None:
        return False
    # A norm may have no weight or bias.
    if any(v is None for v in tensors):
        return False
    # For a single token, in decoding, the call costs more than the passes.
    decoded = torch.is_inference_mode_enabled() and x.numel() == x.shape[-1]
    alike = all(v.dtype == x.dtype for v in tensors) and not torch.is_autocast_enabled("cpu")
    readable = alike and not decoded and dispatch.cpu_kernels_may_read(*tensors, drop=drop)
    return readable and cpu_kernel_passes("add_norm", x.dtype, _check)


def _apply(
    x: Tensor, norm: nn.Module | None, drop: Drop | None, rows: Tensor | None, *maps: Tensor
) -> tuple[Tensor, Tensor]:
    weight: Tensor | None = None
    norm_bias: Tensor | None = None
    kind, eps = NONE, 0.0
    if isinstance(norm, nn.LayerNorm):
        kind, eps, weight, norm_bias = LAYER, norm.eps, norm.weight, norm.bias
    elif isinstance(norm, nn.RMSNorm):
        eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
        kind, weight = RMS, norm.weight
    if rows is not None:
        rows = rows.long().expand(x.shape[:-1]).contiguous()
    weight, norm_bias = (None if v is None else v.contiguous() for v in (weight, norm_bias))
    out, total = _AddNorm.apply(  # type: ignore[no-untyped-call]
        (kind, eps, drop), rows, x, weight, norm_bias, *maps, *[None] * (5 - len(maps))
    )
    return total, total if kind == NONE else out


class _AddNorm(torch.autograd.Function):
    """Without a branch (``given`` None), x is the sum."""

    @staticmethod
    def forward(
        ctx: Any,
        config: tuple[int, float, Drop | None],
        row_numbers: Tensor | None,
        x: Tensor,
        weight: Tensor | None,
        norm_bias: Tensor | None,
        given: Tensor | None,
        into: Tensor | None,
        bias: Tensor | None,
        up: Tensor | None,
        bias_up: Tensor | None,
    ) -> tuple[Tensor | None, Tensor]:
        (kind, eps, drop), x = config, x.contiguous()
        problem = _problem(x, kind, drop, row_numbers)
        total, hidden, rows = x, None, None
        if given is not None and into is not None:
            hidden = rows = given.reshape(-1, given.shape[-1])
            if up is not None and bias_up is not None:
                hidden = rows @ up.t()
                bias_relu.bias_relu(hidden, bias_up)
            total, branch = torch.empty_like(x), hidden @ into.t()
            bias = None if bias is None else bias.contiguous()
            _point(problem, branch=branch, bias=bias)
        out = moments = None
        if kind != NONE:
            out, moments = torch.empty_like(x), x.new_empty(problem.rows, 2)
            problem.eps = eps
            _point(problem, weight=weight, norm_bias=norm_bias, out=out, moments=moments)
        _point(problem, x=x, sum=total)
        call("add_norm", "add_norm", x.dtype, problem)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            row_numbers, total, weight, norm_bias, moments, rows, hidden, into, bias, up
        )
        ctx.kind, ctx.drop, ctx.given = kind, drop, None if given is None else given.shape
        return out, total

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: Tensor | None, grad_total: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        row_numbers, total, weight, norm_bias, moments, rows, hidden, into, bias, up = (
            ctx.saved_tensors
        )
        kind = NONE if grad_out is None else ctx.kind
        problem = _problem(total, kind, ctx.drop, row_numbers)
        grad_x = grad_branch = torch.empty_like(total)
        grads = total.new_empty(3, PARTS, problem.columns)
        if grad_out is not None:
            grad_out = grad_out.contiguous()
            _point(problem, grad_out=grad_out, sum=total, weight=weight, moments=moments)
        if grad_total is not None:
            grad_total = grad_total.contiguous()
            _point(problem, grad_sum=grad_total)
        if hidden is not None and ctx.drop is not None:
            grad_branch = torch.empty_like(total)
            _point(problem, grad_branch=grad_branch)
        _point(problem, bias=bias, grad_x=grad_x, grads=grads)
        call("add_norm", "add_norm_backward", total.dtype, problem)
        grad_bias, grad_weight, grad_norm_bias = grads.sum(1)
        found: list[Tensor | None] = [None, None, grad_x]
        found += [
            None if of is None else g
            for of, g in ((weight, grad_weight), (norm_bias, grad_norm_bias))
        ]
        if hidden is None:
            return *found, *[None] * 5
        grad_branch = grad_branch.view(-1, problem.columns)
        grad_hidden, grad_into = grad_branch @ into, grad_branch.t() @ hidden
        if up is None:
            return *found, grad_hidden.view(ctx.given), grad_into, grad_bias, None, None
        grad_bias_up = bias_relu.bias_relu_backward(grad_hidden, hidden)
        grad_given = (grad_hidden @ up).view(ctx.given)
        return *found, grad_given, grad_into, grad_bias, grad_hidden.t() @ rows, grad_bias_up


def _problem(x: Tensor, kind: int, drop: Drop | None, row_numbers: Tensor | None) -> Problem:
    columns = x.shape[-1]
    rows = x.numel() // max(columns, 1)
    problem = Problem(build.fork(), torch.get_num_threads(), rows, columns, PARTS, kind)
    problem.drop = Dropout(drop)
    _point(problem, row_numbers=row_numbers)
    return problem


def _point(problem: Problem, **tensors: Tensor | None) -> None:
    """Set the fields of these names to the addresses of the tensors."""
    for name, tensor in tensors.items():
        if tensor is not None:
            setattr(problem, name, address(tensor))


def _check(dtype: torch.dtype) -> bool:
    def drawn(*shape: int) -> Tensor:
        return torch.arange(math.prod(shape), dtype=dtype).sin().view(shape).requires_grad_()

    drop, row_numbers = Drop(0.4, 2**62 + 2**31 + 5), torch.arange(19).flip(0) + 2**31
    x, weight, norm_bias = drawn(19, 37), drawn(37), drawn(37)
    given, into, bias = drawn(19, 21), drawn(37, 21), drawn(37)

    def same(kind: int) -> bool:
        """Value and gradient."""
        given_norm = (
            (weight, norm_bias if kind == LAYER else None) if kind != NONE else (None, None)
        )
        branch = given, into, bias, None, None
        out, total = _AddNorm.apply(  # type: ignore[no-untyped-call]
            (kind, 1e-3, drop), row_numbers, x, *given_norm, *branch
        )
        expected = x + drop(F.linear(given, into, bias), row_numbers)
        if kind == LAYER:
            expected = expected + F.layer_norm(expected, (37,), weight, norm_bias, 1e-3)
        elif kind == RMS:
            expected = expected + F.rms_norm(expected, (37,), weight, 1e-3)
        found = total if out is None else total + out
        leaves = [t for t in (x, *given_norm, given, into, bias) if t is not None]
        grads = (
            torch.autograd.grad((y * x.detach().flip(0)).sum(), leaves) for y in (found, expected)
        )
        pairs = [(found, expected), *zip(*grads, strict=True)]
        return all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in pairs)

    with torch.enable_grad():
        return all(same(kind) for kind in (NONE, LAYER, RMS))
