"""The C++ kernels of single passes, and the modules that use them: bias + ReLU in the feed-forward,
and dropout, with an optional residual."""

import ctypes
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pe_lab.core.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu import build
from pe_lab.kernels.cpu.call import Dropout, Problem, call
from pe_lab.models.transformer import FeedForward

logger = logging.getLogger("pe_lab")


@functools.cache
def cpu_kernel_passes(
    source: str, dtype: torch.dtype, check: Callable[[torch.dtype], bool]
) -> bool:
    """Whether a C++ kernel other than attention is available and passes its check; a warning if it
    fails.

    Args:
        check: compares the kernel with PyTorch on small tensors of this dtype.
    """
    # ``library`` has logged the reason.
    if build.library(source) is None:
        return False
    try:
        with torch.inference_mode(False), torch.no_grad():
            passed = check(dtype)
    except Exception as error:  # whatever it is, slower code remains
        logger.debug("the CPU kernel %s failed", source, exc_info=error)
        passed = False
    if not passed:
        logger.warning("CPU kernel %r failed its self-check; falling back to PyTorch", source)
    return passed


# The gradient of the bias is summed in this many parts, whatever the number of threads, so that
# results do not depend on it.
PARTS = 16


class FastFeedForward(FeedForward):
    """``FeedForward`` with fused bias and ReLU."""

    def forward(self, h: Tensor, drop: Drop | None = None, rows: Tensor | None = None) -> Tensor:
        fused = None
        if self.activation == "relu" and (drop is None or not self.drops_hidden):
            fused = feed_forward(h, self.up, self.out)
        return super().forward(h, drop, rows) if fused is None else fused


class BiasReLU(Problem):
    """bias_relu.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "columns", "parts")),
        *((name, ctypes.c_void_p) for name in ("x", "bias", "out", "grad_bias")),
    )


def feed_forward(x: Tensor, up: nn.Linear, out: nn.Linear) -> Tensor | None:
    """out(relu(up(x))), (.., E); None for tensors that the kernel does not support."""
    tensors = x, up.weight, up.bias, out.weight, out.bias
    alike = all(v.dtype == x.dtype for v in tensors) and not torch.is_autocast_enabled("cpu")
    # For a single token, in decoding, the call costs more than the passes.
    decoded = torch.is_inference_mode_enabled() and x.numel() == x.shape[-1]
    readable = alike and not decoded and dispatch.readable(x)
    if not (readable and cpu_kernel_passes("bias_relu", x.dtype, _bias_relu_is_right)):
        return None
    return _FeedForward.apply(*tensors)


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        hidden = rows @ weight.t()
        bias_relu_(hidden, bias)
        ctx.save_for_backward(rows, weight, hidden, out_weight)
        ctx.shape = x.shape
        return torch.addmm(out_bias, hidden, out_weight.t()).view(*x.shape[:-1], len(out_weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        rows, weight, hidden, out_weight = ctx.saved_tensors
        grad = grad.reshape(-1, grad.shape[-1])
        grad_hidden = grad @ out_weight
        grad_bias = bias_relu_backward_(grad_hidden, hidden)
        return (
            (grad_hidden @ weight).view(ctx.shape),
            grad_hidden.t() @ rows,
            grad_bias,
            grad.t() @ hidden,
            grad.sum(0),
        )


def bias_relu_(x: Tensor, bias: Tensor) -> None:
    """x (rows, C) becomes relu(x + bias)."""
    _bias_relu(x, bias=bias.contiguous())


def bias_relu_backward_(grad: Tensor, out: Tensor) -> Tensor:
    """The gradient of ``out`` = relu(x + bias) becomes that of x; returns that of the bias."""
    grad_bias = grad.new_empty(PARTS, grad.shape[1])
    _bias_relu(grad, out=out, grad_bias=grad_bias)
    return grad_bias.sum(0)


def _bias_relu(x: Tensor, **tensors: Tensor) -> None:
    problem = BiasReLU(*x.shape, PARTS)
    problem.fill(x=x, **tensors)
    call("bias_relu", "bias_relu", x.dtype, problem)


def _bias_relu_is_right(dtype: torch.dtype) -> bool:
    """Whether the kernel equals PyTorch on small tensors."""
    x = torch.arange(33 * 37, dtype=dtype).sin().view(33, 37)
    bias = torch.arange(37, dtype=dtype).cos()
    expected, found, grad = (x + bias).relu(), x.clone(), x.clone()
    bias_relu_(found, bias)
    grad_bias = bias_relu_backward_(grad, found)
    expected_grad = x * (expected > 0)
    return (
        torch.equal(found, expected)
        and torch.equal(grad, expected_grad)
        and torch.allclose(grad_bias, expected_grad.sum(0), atol=1e-5)
    )


@dataclass(frozen=True)
class FusedDrop(Drop):
    """``Drop`` by the kernel, in one pass."""

    def __call__(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        return dropout(x, self, rows) if _supported(x) else super().__call__(x, rows)

    def add(self, residual: Tensor, x: Tensor, rows: Tensor | None = None) -> Tensor:
        return dropout(x, self, rows, residual) if _supported(x) else super().add(residual, x, rows)


def _supported(x: Tensor) -> bool:
    readable = dispatch.readable(x)
    return readable and cpu_kernel_passes("dropout", x.dtype, _dropout_is_right)


class Dropping(Problem):
    """dropout.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "columns")),
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


def _dropout_is_right(dtype: torch.dtype) -> bool:
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
    x, columns = x.contiguous(), x.shape[-1]
    residual = None if residual is None else residual.contiguous()
    out = torch.empty_like(x)
    problem = Dropping(x.numel() // max(columns, 1), columns, Dropout(drop))
    problem.fill(x=x, residual=residual, row_numbers=rows, out=out)
    call("dropout", "dropout", x.dtype, problem)
    return out
