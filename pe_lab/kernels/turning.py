"""Rotation of queries and keys, by a compiled kernel where there is one."""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.kernels import build, roads
from pe_lab.kernels.calling import Strided, Turn, by_token, call, contiguous_rows
from pe_lab.kernels.proof import small_kernel
from pe_lab.kernels.turns import in_pytorch, real


class Turned(ctypes.Structure):
    """turned.cpp."""

    _fields_ = (
        ("fork", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("threads", "batch", "heads", "tokens", "width")),
        ("back", ctypes.c_int64),
        *((name, Strided) for name in ("x", "out")),
        ("turn", Turn),
    )


def turned(x_BHTD: Tensor, turn: Tensor, *, halves: bool) -> Tensor:
    """Pairs of features, read as complex numbers, times ``turn``; in the type of x, but computed at
    least in float32.

    Args:
        turn: complex, (1 or B, 1 or H, T, D/2).
        halves: pairs are the features m and m + D/2, else 2m and 2m + 1.
    """
    wide = torch.promote_types(x_BHTD.dtype, torch.float32)
    turn = turn.to(wide.to_complex())
    inference = torch.is_inference_mode_enabled()
    # Without a gradient one complex product is as fast, and a call dearer: 84 against 50 us for the
    # 400 keys of a layer, as they are turned for every token that is decoded.
    plain = inference and (x_BHTD.shape[2] == 1 or not halves)
    given = not (plain or turn.requires_grad) and roads.compiled_may(x_BHTD, turn)
    if given and small_kernel("turned", x_BHTD.dtype, _proved):
        if inference:
            return _compiled(x_BHTD, turn, halves, back=False)
        out: Tensor = _Turned.apply(x_BHTD, turn, halves)  # type: ignore[no-untyped-call]
        return out
    return in_pytorch(x_BHTD.to(wide), turn, halves).to(x_BHTD.dtype)


def _compiled(x: Tensor, turn: Tensor, halves: bool, back: bool) -> Tensor:
    x = contiguous_rows(x)
    out = by_token(*x.shape, like=x)
    numbers = real(turn, halves).expand(x.shape)
    problem = Turned(build.fork(), torch.get_num_threads(), *x.shape, int(back))
    problem.x, problem.out, problem.turn = Strided(x), Strided(out), Turn(numbers, halves)
    call("turned", "turned", x.dtype, problem)
    return out


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, turn: Tensor, halves: bool) -> Tensor:
        ctx.save_for_backward(turn)
        ctx.halves = halves
        return _compiled(x, turn, halves, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (turn,) = ctx.saved_tensors
        return _compiled(grad, turn, ctx.halves, back=True), None, None


def _proved(dtype: torch.dtype) -> bool:
    x = torch.arange(2 * 3 * 5 * 38, dtype=dtype).sin().view(2, 5, 3, 38).transpose(1, 2)
    angle = torch.arange(5 * 19, dtype=dtype).view(1, 1, 5, 19)
    turn = torch.polar(1 + angle / 95, angle)

    def same(turn: Tensor, halves: bool, back: bool) -> bool:
        expected = in_pytorch(x, turn.conj() if back else turn, halves)
        return torch.allclose(_compiled(x, turn, halves, back), expected, atol=1e-5)

    ways = (False, True)
    turns = (turn, turn.expand(2, 3, 5, 19))
    return all(same(t, halves, back) for t in turns for halves in ways for back in ways)
