"""The bias of a linear map, and the relu after it, in place, and back: in one pass over the wide
matrix each."""

import ctypes

import torch
from torch import Tensor

from pe_lab.kernels import build
from pe_lab.kernels.calling import call
from pe_lab.kernels.proof import small_kernel

# The gradient of the bias is added up in so many parts, whatever the number of threads: results do
# not depend on it.
PARTS = 16


class Rectified(ctypes.Structure):
    """rectified.cpp."""

    _fields_ = (
        ("fork", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("threads", "rows", "columns", "parts", "relu")),
        *((name, ctypes.c_void_p) for name in ("x", "bias", "out", "grad_bias")),
    )


def serves(dtype: torch.dtype) -> bool:
    """Whether the kernel is there, for tensors of this type that a compiled kernel may read."""
    return small_kernel("rectified", dtype, _proved)


def rectify(x: Tensor, bias: Tensor) -> None:
    """x (rows, C) becomes relu(x + bias)."""
    _add(x, bias, relu=True)


def rectify_back(grad: Tensor, out: Tensor) -> Tensor:
    """The gradient of ``out`` = relu(x + bias) becomes that of x; returned is that of the bias."""
    return _summed(grad, out)


def add_bias(x: Tensor, bias: Tensor) -> None:
    """x (rows, C) becomes x + bias."""
    _add(x, bias, relu=False)


def bias_gradient(grad: Tensor) -> Tensor:
    """The gradient of the bias from that of ``x + bias``: the sum of its rows, (C)."""
    return _summed(grad, None)


def _add(x: Tensor, bias: Tensor, relu: bool) -> None:
    problem = _problem(x, relu)
    bias = bias.contiguous()
    # One without elements may have no address, and is not none.
    problem.bias = bias.data_ptr() or 64
    call("rectified", "rectified", x.dtype, problem)


def _summed(grad: Tensor, out: Tensor | None) -> Tensor:
    problem = _problem(grad, out is not None)
    grad_bias = grad.new_empty(PARTS, grad.shape[1])
    problem.out = None if out is None else out.data_ptr()
    problem.grad_bias = grad_bias.data_ptr()
    call("rectified", "rectified", grad.dtype, problem)
    return grad_bias.sum(0)


def _problem(x: Tensor, relu: bool) -> Rectified:
    problem = Rectified(build.fork(), torch.get_num_threads(), *x.shape, PARTS, int(relu))
    problem.x = x.data_ptr()
    return problem


def _proved(dtype: torch.dtype) -> bool:
    x = torch.arange(33 * 37, dtype=dtype).sin().view(33, 37)
    bias = torch.arange(37, dtype=dtype).cos()
    expected, found, grad = (x + bias).relu(), x.clone(), x.clone()
    rectify(found, bias)
    grad_bias = rectify_back(grad, found)
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
