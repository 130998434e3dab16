"""The C++ kernel of bias + ReLU, and the feed-forward that uses it."""

import ctypes
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pe_lab.core.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu import build
from pe_lab.kernels.cpu.ctypes_abi import address, call
from pe_lab.kernels.selfcheck import cpu_kernel_passes
from pe_lab.models.transformer import FeedForward

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


class Problem(ctypes.Structure):
    """bias_relu.cpp."""

    _fields_ = (
        ("fork", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("threads", "rows", "columns", "parts")),
        *((name, ctypes.c_void_p) for name in ("x", "bias", "out", "grad_bias")),
    )


def feed_forward(x: Tensor, up: nn.Linear, out: nn.Linear) -> Tensor | None:
    """out(relu(up(x))), (.., E); None for tensors that the kernel does not support."""
    tensors = x, up.weight, up.bias, out.weight, out.bias
    alike = all(v.dtype == x.dtype for v in tensors) and not torch.is_autocast_enabled("cpu")
    # For a single token, in decoding, the call costs more than the passes.
    decoded = torch.is_inference_mode_enabled() and x.numel() == x.shape[-1]
    readable = alike and not decoded and dispatch.cpu_kernels_may_read(x)
    if not (readable and cpu_kernel_passes("bias_relu", x.dtype, check)):
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
        mapped = torch.addmm(out_bias, hidden, out_weight.t())
        return mapped.view(*x.shape[:-1], len(out_weight))

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
    problem, bias = _problem(x), bias.contiguous()
    problem.bias = address(bias)
    call("bias_relu", "bias_relu", x.dtype, problem)


def bias_relu_backward_(grad: Tensor, out: Tensor) -> Tensor:
    """The gradient of ``out`` = relu(x + bias) becomes that of x; returns that of the bias."""
    problem, grad_bias = _problem(grad), grad.new_empty(PARTS, grad.shape[1])
    problem.out, problem.grad_bias = address(out), grad_bias.data_ptr()
    call("bias_relu", "bias_relu", grad.dtype, problem)
    return grad_bias.sum(0)


def _problem(x: Tensor) -> Problem:
    problem = Problem(build.fork(), torch.get_num_threads(), *x.shape, PARTS)
    problem.x = address(x)
    return problem


def check(dtype: torch.dtype) -> bool:
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
