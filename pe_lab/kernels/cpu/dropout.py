"""The C++ kernel of dropout, with an optional residual, and ``FusedDrop``, which uses it."""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.core.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu import build
from pe_lab.kernels.cpu.ctypes_abi import Dropout, call
from pe_lab.kernels.selfcheck import cpu_kernel_passes


@dataclass(frozen=True)
class FusedDrop(Drop):
    """``Drop`` by the kernel, in one pass."""

    def __call__(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        return dropout(x, self, rows) if _supported(x) else super().__call__(x, rows)

    def add(self, residual: Tensor, x: Tensor, rows: Tensor | None = None) -> Tensor:
        return dropout(x, self, rows, residual) if _supported(x) else super().add(residual, x, rows)


def _supported(x: Tensor) -> bool:
    readable = dispatch.cpu_kernels_may_read(x)
    return readable and cpu_kernel_passes("dropout", x.dtype, check)


class Problem(ctypes.Structure):
    """dropout.cpp."""

    _fields_ = (
        ("fork", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("threads", "rows", "columns")),
        ("drop", Dropout),
        *((name, ctypes.c_void_p) for name in ("row_numbers", "x", "residual", "out")),
    )


def dropout(
    x: Tensor, drop: Drop, rows: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """``drop(x, rows)``, bit for bit; or ``residual + drop(x, rows)`` in the same pass.

    Args:
        x: (.., C), float32 or float64.
        rows: int64, (..) or broadcastable to it: the numbers of the rows, if not consecutive.
        residual: (.., C).
    """
    if rows is not None:
        rows = rows.long().expand(x.shape[:-1]).contiguous()
    if residual is not None and (residual.shape, residual.dtype) != (x.shape, x.dtype):
        raise ValueError(
            f"the residual is {tuple(residual.shape)} of {residual.dtype}, what is dropped "
            f"{tuple(x.shape)} of {x.dtype}"
        )
    return _Dropout.apply(x, residual, drop, rows)


def check(dtype: torch.dtype) -> bool:
    """Whether the kernel equals PyTorch on small tensors."""
    drop, rows = Drop(0.4, 2**62 + 2**31 + 5), torch.tensor([2**31 + 1, 3, 11])
    x = torch.arange(1, 106, dtype=dtype).view(3, 35)
    same = torch.equal(dropout(x, drop, rows), drop(x, rows))
    # Product and sum are rounded once.
    return same and torch.allclose(dropout(x, drop, rows, x), x + drop(x, rows))


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, drop: Drop, rows: Tensor | None
    ) -> Tensor:
        ctx.drop = drop
        ctx.save_for_backward(rows)
        return _run(x, residual, drop, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, residual = ctx.needs_input_grad[:2]
        (rows,) = ctx.saved_tensors
        return (
            _run(grad, None, ctx.drop, rows) if x else None,
            grad if residual else None,
            None,
            None,
        )


def _run(x: Tensor, residual: Tensor | None, drop: Drop, rows: Tensor | None) -> Tensor:
    x = x.contiguous()
    residual = None if residual is None else residual.contiguous()
    out = torch.empty_like(x)
    columns = x.shape[-1]
    problem = Problem(
        build.fork(), torch.get_num_threads(), x.numel() // max(columns, 1), columns, Dropout(drop)
    )
    problem.x, problem.out = x.data_ptr(), out.data_ptr()
    problem.residual = None if residual is None else residual.data_ptr()
    problem.row_numbers = None if rows is None else rows.data_ptr()
    call("dropout", "dropout", x.dtype, problem)
    return out
