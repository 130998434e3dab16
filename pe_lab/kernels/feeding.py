"""linear, relu, linear with fewer passes over the wide matrix between, where a kernel is there."""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.kernels import build, roads
from pe_lab.kernels.calling import call
from pe_lab.kernels.proof import small_kernel

# The gradient of the bias is added up in so many parts, whatever the number of threads: results do
# not depend on it.
PARTS = 16


class Rectified(ctypes.Structure):
    """rectified.cpp."""

    _fields_ = (
        ("fork", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("threads", "rows", "columns", "parts")),
        *((name, ctypes.c_void_p) for name in ("x", "bias", "out", "grad_bias")),
    )


def fed(x: Tensor, up: Tensor, bias_up: Tensor, out: Tensor, bias_out: Tensor) -> Tensor:
    """relu(x up^T + bias_up) out^T + bias_out, (.., C)."""
    weights = (up, bias_up, out, bias_out)
    alike = all(w.dtype == x.dtype for w in weights) and not torch.is_autocast_enabled("cpu")
    # For one token, as it is decoded, a call costs more than the passes.
    decoded = torch.is_inference_mode_enabled() and x.numel() == x.shape[-1]
    served = alike and not decoded and roads.compiled_may(x, *weights)
    if served and small_kernel("rectified", x.dtype, _proved):
        found: Tensor = _Fed.apply(x, *weights)  # type: ignore[no-untyped-call]
        return found
    return F.linear(F.relu(F.linear(x, up, bias_up)), out, bias_out)


class _Fed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, up: Tensor, bias_up: Tensor, out: Tensor, bias_out: Tensor
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        hidden = rows @ up.t()
        _rectify(hidden, bias_up)
        ctx.save_for_backward(rows, up, hidden, out)
        return torch.addmm(bias_out, hidden, out.t()).view(*x.shape[:-1], len(out))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        rows, up, hidden, out = ctx.saved_tensors
        grad_rows = grad.reshape(-1, grad.shape[-1])
        grad_hidden = grad_rows @ out
        grad_bias_up = _rectify_back(grad_hidden, hidden)
        return (
            (grad_hidden @ up).view(*grad.shape[:-1], up.shape[1]),
            grad_hidden.t() @ rows,
            grad_bias_up,
            grad_rows.t() @ hidden,
            grad_rows.sum(0),
        )


def _rectify(x: Tensor, bias: Tensor) -> None:
    """x becomes relu(x + bias)."""
    problem = _problem(x)
    bias = bias.contiguous()
    problem.bias = bias.data_ptr()
    call("rectified", "rectified", x.dtype, problem)


def _rectify_back(grad: Tensor, out: Tensor) -> Tensor:
    """The gradient of ``out`` = relu(x + bias) becomes that of x; returned is that of the bias."""
    problem = _problem(grad)
    grad_bias = grad.new_empty(PARTS, grad.shape[1])
    # One without elements may have no address, and is not none.
    problem.out, problem.grad_bias = out.data_ptr() or 64, grad_bias.data_ptr()
    call("rectified", "rectified", grad.dtype, problem)
    return grad_bias.sum(0)


def _problem(x: Tensor) -> Rectified:
    problem = Rectified(build.fork(), torch.get_num_threads(), *x.shape, PARTS)
    problem.x = x.data_ptr()
    return problem


def _proved(dtype: torch.dtype) -> bool:
    x = torch.arange(33 * 37, dtype=dtype).sin().view(33, 37)
    bias = torch.arange(37, dtype=dtype).cos()
    expected, found, grad = (x + bias).relu(), x.clone(), x.clone()
    _rectify(found, bias)
    grad_bias = _rectify_back(grad, found)
    expected_grad = x * (expected > 0)
    return (
        torch.equal(found, expected)
        and torch.equal(grad, expected_grad)
        and torch.allclose(grad_bias, expected_grad.sum(0), atol=1e-5)
    )
