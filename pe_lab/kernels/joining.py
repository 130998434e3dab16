"""A branch joins the residual stream, normalised there, in one pass where a kernel is there."""

import ctypes
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pe_lab.common.dropout import Drop
from pe_lab.kernels import build, feeding, roads
from pe_lab.kernels.calling import Dropout, call
from pe_lab.kernels.dropping import dropped
from pe_lab.kernels.proof import small_kernel

# Gradients of vectors are added up in so many parts, whatever the number of threads: results do
# not depend on it.
PARTS = 16
NONE, LAYER, RMS = range(3)


class Joined(ctypes.Structure):
    """joined.cpp."""

    _fields_ = (
        ("fork", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("threads", "rows", "columns", "parts", "norm")),
        ("eps", ctypes.c_double),
        ("drop", Dropout),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("places", "x", "branch", "bias", "sum", "weight", "shift", "out", "moments"),
                *("grad_sum", "grad_out", "grad_x", "grad_branch", "grads"),
            )
        ),
    )


def joined(
    x: Tensor,
    given: Tensor,
    out: nn.Linear,
    norm: nn.Module | None,
    drop: Drop | None,
    rows: Tensor | None = None,
    *,
    up: nn.Linear | None = None,
    fast: bool = True,
) -> tuple[Tensor, Tensor]:
    """x + out(given), of which some is dropped, and that sum normalised (without a norm: itself).

    Args:
        x: (.., E).
        given: (.., D).
        rows: int64, (..): where the rows stand for dropout, if not in turn.
        up: ``relu(up(given))`` takes the place of ``given``.
        fast: False: by no kernel.
    """
    maps = [p for linear in (out, up) if linear is not None for p in (linear.weight, linear.bias)]
    if fast and given.shape[:-1] == x.shape[:-1] and _serves(x, norm, drop, given, *maps):
        if up is not None and not feeding.serves(x.dtype):
            given, maps = F.relu(up(given)), maps[:2]
        return _applied(x, norm, drop, rows, given, *maps)
    branch = out(given if up is None else F.relu(up(given)))
    x = x + branch if drop is None else dropped(branch, drop, rows, x, fast=fast)
    return x, x if norm is None else norm(x)


def normed(x: Tensor, norm: nn.Module, *, fast: bool = True) -> tuple[Tensor, Tensor]:
    """x itself and x normalised. Who goes on with this x has both gradients added in one pass."""
    if fast and _serves(x, norm, None):
        return _applied(x, norm, None, None)
    return x, norm(x)


def _serves(x: Tensor, norm: nn.Module | None, drop: Drop | None, *others: Tensor) -> bool:
    given = [x, *others]
    if isinstance(norm, nn.LayerNorm):
        given += [norm.weight, norm.bias]
    elif isinstance(norm, nn.RMSNorm):
        given.append(norm.weight)
    elif norm is not None:
        return False
    # A norm may be without.
    if any(v is None for v in given):
        return False
    # For one token, as it is decoded, a call costs more than the passes.
    decoded = torch.is_inference_mode_enabled() and x.numel() == x.shape[-1]
    alike = all(v.dtype == x.dtype for v in given) and not torch.is_autocast_enabled("cpu")
    served = alike and not decoded and roads.compiled_may(*given, drop=drop)
    return served and small_kernel("joined", x.dtype, _proved)


def _applied(
    x: Tensor, norm: nn.Module | None, drop: Drop | None, rows: Tensor | None, *maps: Tensor
) -> tuple[Tensor, Tensor]:
    weight: Tensor | None = None
    shift: Tensor | None = None
    kind, eps = NONE, 0.0
    if isinstance(norm, nn.LayerNorm):
        kind, eps, weight, shift = LAYER, norm.eps, norm.weight, norm.bias
    elif isinstance(norm, nn.RMSNorm):
        eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
        kind, weight = RMS, norm.weight
    if rows is not None:
        rows = rows.long().expand(x.shape[:-1]).contiguous()
    weight, shift = (None if v is None else v.contiguous() for v in (weight, shift))
    out, total = _Joined.apply(  # type: ignore[no-untyped-call]
        (kind, eps, drop), rows, x, weight, shift, *maps, *[None] * (5 - len(maps))
    )
    return total, total if kind == NONE else out


class _Joined(torch.autograd.Function):
    """``given`` is None, and x the sum, where nothing joins."""

    @staticmethod
    def forward(
        ctx: Any,
        how: tuple[int, float, Drop | None],
        places: Tensor | None,
        x: Tensor,
        weight: Tensor | None,
        shift: Tensor | None,
        given: Tensor | None,
        into: Tensor | None,
        bias: Tensor | None,
        up: Tensor | None,
        bias_up: Tensor | None,
    ) -> tuple[Tensor | None, Tensor]:
        (kind, eps, drop), x = how, x.contiguous()
        problem = _problem(x, kind, drop, places)
        total, hidden, rows = x, None, None
        if given is not None and into is not None:
            hidden = rows = given.reshape(-1, given.shape[-1])
            if up is not None and bias_up is not None:
                hidden = rows @ up.t()
                feeding.rectify(hidden, bias_up)
            total, branch = torch.empty_like(x), hidden @ into.t()
            bias = None if bias is None else bias.contiguous()
            _point(problem, branch=branch, bias=bias)
        out = moments = None
        if kind != NONE:
            out, moments = torch.empty_like(x), x.new_empty(problem.rows, 2)
            problem.eps = eps
            _point(problem, weight=weight, shift=shift, out=out, moments=moments)
        _point(problem, x=x, sum=total)
        call("joined", "joined", x.dtype, problem)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(places, total, weight, shift, moments, rows, hidden, into, bias, up)
        ctx.kind, ctx.drop, ctx.given = kind, drop, None if given is None else given.shape
        return out, total

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: Tensor | None, grad_total: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        places, total, weight, shift, moments, rows, hidden, into, bias, up = ctx.saved_tensors
        kind = NONE if grad_out is None else ctx.kind
        problem = _problem(total, kind, ctx.drop, places)
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
        call("joined", "joined_back", total.dtype, problem)
        grad_bias, grad_weight, grad_shift = grads.sum(1)
        found: list[Tensor | None] = [None, None, grad_x]
        found += [
            None if of is None else g for of, g in ((weight, grad_weight), (shift, grad_shift))
        ]
        if hidden is None:
            return *found, *[None] * 5
        grad_branch = grad_branch.view(-1, problem.columns)
        grad_hidden, grad_into = grad_branch @ into, grad_branch.t() @ hidden
        if up is None:
            return *found, grad_hidden.view(ctx.given), grad_into, grad_bias, None, None
        grad_bias_up = feeding.rectify_back(grad_hidden, hidden)
        grad_given = (grad_hidden @ up).view(ctx.given)
        return *found, grad_given, grad_into, grad_bias, grad_hidden.t() @ rows, grad_bias_up


def _problem(x: Tensor, kind: int, drop: Drop | None, places: Tensor | None) -> Joined:
    columns = x.shape[-1]
    rows = x.numel() // max(columns, 1)
    problem = Joined(build.fork(), torch.get_num_threads(), rows, columns, PARTS, kind)
    problem.drop = Dropout(drop)
    _point(problem, places=places)
    return problem


def _point(problem: Joined, **tensors: Tensor | None) -> None:
    """Have the fields of these names point to them."""
    for name, tensor in tensors.items():
        if tensor is not None:
            # One without elements may have no address, and is not none.
            setattr(problem, name, tensor.data_ptr() or 64)


def _proved(dtype: torch.dtype) -> bool:
    def drawn(*shape: int) -> Tensor:
        return torch.arange(math.prod(shape), dtype=dtype).sin().view(shape).requires_grad_()

    drop, places = Drop(0.4, 2**62 + 2**31 + 5), torch.arange(19).flip(0) + 2**31
    x, weight, shift = drawn(19, 37), drawn(37), drawn(37)
    given, into, bias = drawn(19, 21), drawn(37, 21), drawn(37)

    def same(kind: int) -> bool:
        """Value and gradient."""
        given_norm = (weight, shift if kind == LAYER else None) if kind != NONE else (None, None)
        branch = given, into, bias, None, None
        out, total = _Joined.apply(  # type: ignore[no-untyped-call]
            (kind, 1e-3, drop), places, x, *given_norm, *branch
        )
        expected = x + drop(F.linear(given, into, bias), places)
        if kind == LAYER:
            expected = expected + F.layer_norm(expected, (37,), weight, shift, 1e-3)
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
