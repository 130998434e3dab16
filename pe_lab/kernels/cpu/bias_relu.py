"""The C++ kernel of bias + ReLU, in place, and its backward; one pass over the matrix each."""

import ctypes

import torch
from torch import Tensor

from pe_lab.kernels.cpu import build
from pe_lab.kernels.cpu.ctypes_abi import address, call
from pe_lab.kernels.selfcheck import cpu_kernel_passes

# The gradient of the bias is summed in this many parts, whatever the number of threads, so that
# results do not depend on it.
PARTS = 16


class Problem(ctypes.Structure):
    """bias_relu.cpp."""

    _fields_ = (
        ("fork", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("threads", "rows", "columns", "parts", "relu")),
        *((name, ctypes.c_void_p) for name in ("x", "bias", "out", "grad_bias")),
    )


def available(dtype: torch.dtype) -> bool:
    """Whether the kernel passes its self-check, for tensors of this type that it may read."""
    return cpu_kernel_passes("bias_relu", dtype, _check)


def bias_relu(x: Tensor, bias: Tensor) -> None:
    """x (rows, C) becomes relu(x + bias)."""
    _add(x, bias, relu=True)


def bias_relu_backward(grad: Tensor, out: Tensor) -> Tensor:
    """The gradient of ``out`` = relu(x + bias) becomes that of x; returns that of the bias."""
    return _sum(grad, out)


def add_bias(x: Tensor, bias: Tensor) -> None:
    """x (rows, C) becomes x + bias."""
    _add(x, bias, relu=False)


def bias_gradient(grad: Tensor) -> Tensor:
    """The gradient of the bias, (C), from that of ``x + bias``: the sum of its rows."""
    return _sum(grad, None)


def _add(x: Tensor, bias: Tensor, relu: bool) -> None:
    problem = _problem(x, relu)
    bias = bias.contiguous()
    problem.bias = address(bias)
    call("bias_relu", "bias_relu", x.dtype, problem)


def _sum(grad: Tensor, out: Tensor | None) -> Tensor:
    problem = _problem(grad, out is not None)
    grad_bias = grad.new_empty(PARTS, grad.shape[1])
    problem.out = None if out is None else out.data_ptr()
    problem.grad_bias = grad_bias.data_ptr()
    call("bias_relu", "bias_relu", grad.dtype, problem)
    return grad_bias.sum(0)


def _problem(x: Tensor, relu: bool) -> Problem:
    problem = Problem(build.fork(), torch.get_num_threads(), *x.shape, PARTS, int(relu))
    problem.x = x.data_ptr()
    return problem


def _check(dtype: torch.dtype) -> bool:
    x = torch.arange(33 * 37, dtype=dtype).sin().view(33, 37)
    bias = torch.arange(37, dtype=dtype).cos()
    expected, found, grad = (x + bias).relu(), x.clone(), x.clone()
    bias_relu(found, bias)
    grad_bias = bias_relu_backward(grad, found)
    expected_grad = x * (expected > 0)
    plain = x.clone()
    add_bias(plain, bias)
    return (
        torch.equal(found, expected)
        and torch.equal(plain, x + bias)
        and torch.allclose(bias_gradient(x), x.sum(0), atol=1e-5)
        and torch.equal(grad, expected_grad)
        and torch.allclose(grad_bias, expected_grad.sum(0), atol=1e-5)
    )
