"""Rotation of queries and keys, by a C++ kernel where it is available."""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu import build
from pe_lab.kernels.cpu.ctypes_abi import (
    Rotary,
    Strided,
    by_token,
    call,
    contiguous_rows,
    real_factors,
)
from pe_lab.kernels.selfcheck import cpu_kernel_passes
from pe_lab.pe.rotation import multiply_pairs


class Problem(ctypes.Structure):
    """rotary.cpp."""

    _fields_ = (
        ("fork", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("threads", "batch", "heads", "tokens", "width")),
        ("back", ctypes.c_int64),
        *((name, Strided) for name in ("x", "out")),
        ("rotary", Rotary),
    )


def rotate(x_BHTD: Tensor, factors: Tensor, halves: bool = False) -> Tensor:
    """Pairs of features, read as complex numbers, times ``factors``; in the dtype of x, but
    computed at least in float32.

    Args:
        factors: complex, (1 or B, 1 or H, T, D/2).
        halves: pairs are the features m and m + D/2, else 2m and 2m + 1.
    """
    wide = torch.promote_types(x_BHTD.dtype, torch.float32)
    factors = factors.to(wide.to_complex())
    inference = torch.is_inference_mode_enabled()
    # Without a gradient one complex product is as fast, and a call dearer: 84 against 50 us for the
    # 400 keys of a layer, as they are turned for every token that is decoded.
    plain = inference and (x_BHTD.shape[2] == 1 or not halves)
    given = not (plain or factors.requires_grad) and dispatch.cpu_kernels_may_read(x_BHTD, factors)
    if given and cpu_kernel_passes("rotary", x_BHTD.dtype, _check):
        if inference:
            return _compiled(x_BHTD, factors, halves, back=False)
        out: Tensor = _Rotate.apply(x_BHTD, factors, halves)  # type: ignore[no-untyped-call]
        return out
    return multiply_pairs(x_BHTD.to(wide), factors, halves).to(x_BHTD.dtype)


def _compiled(x: Tensor, factors: Tensor, halves: bool, back: bool) -> Tensor:
    x = contiguous_rows(x)
    out = by_token(*x.shape, like=x)
    numbers = real_factors(factors, halves).expand(x.shape)
    problem = Problem(build.fork(), torch.get_num_threads(), *x.shape, int(back))
    problem.x, problem.out, problem.rotary = Strided(x), Strided(out), Rotary(numbers, halves)
    call("rotary", "rotary", x.dtype, problem)
    return out


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor, halves: bool) -> Tensor:
        ctx.save_for_backward(factors)
        ctx.halves = halves
        return _compiled(x, factors, halves, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (factors,) = ctx.saved_tensors
        return _compiled(grad, factors, ctx.halves, back=True), None, None


def _check(dtype: torch.dtype) -> bool:
    x = torch.arange(2 * 3 * 5 * 38, dtype=dtype).sin().view(2, 5, 3, 38).transpose(1, 2)
    angle = torch.arange(5 * 19, dtype=dtype).view(1, 1, 5, 19)
    factors = torch.polar(1 + angle / 95, angle)

    def same(factors: Tensor, halves: bool, back: bool) -> bool:
        expected = multiply_pairs(x, factors.conj() if back else factors, halves)
        return torch.allclose(_compiled(x, factors, halves, back), expected, atol=1e-5)

    ways = (False, True)
    of = (factors, factors.expand(2, 3, 5, 19))
    return all(same(t, halves, back) for t in of for halves in ways for back in ways)
