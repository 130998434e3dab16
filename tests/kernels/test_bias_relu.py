"""The feed-forward by the C++ kernel equals PyTorch's."""

import pytest
import torch
import torch.nn.functional as F
from compiler import needs_compiler
from torch import nn

from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu.bias_relu import bias_relu_, bias_relu_backward_, feed_forward

pytestmark = needs_compiler


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("shape", [(3,), (2, 7, 16), (50, 5), (3, 0, 4), (33, 37), (2, 30, 64)])
def test_values_and_gradients(shape: tuple[int, ...], dtype: torch.dtype, limit: float) -> None:
    x = torch.randn(*shape, dtype=dtype, requires_grad=True)
    up, out = nn.Linear(shape[-1], 19, dtype=dtype), nn.Linear(19, shape[-1], dtype=dtype)
    found, expected = feed_forward(x, up, out), out(F.relu(up(x)))
    leaves = [x, *up.parameters(), *out.parameters()]
    direction = torch.randn_like(expected)
    grads = (torch.autograd.grad(y, leaves, direction) for y in (found, expected))
    for a, b in ((found, expected), *zip(*grads, strict=True)):
        torch.testing.assert_close(a, b, atol=limit * 10, rtol=limit)


def test_relu_is_that_of_pytorch() -> None:
    x = torch.tensor([-1.0, -0.0, 0.0, 2.0, torch.nan, torch.inf, -torch.inf]).repeat(3, 5)
    leaf = x.clone().requires_grad_()
    expected = leaf.relu()
    (expected_grad,) = torch.autograd.grad(expected, leaf, torch.ones_like(x))
    found, grad = x.clone(), torch.ones_like(x)
    bias_relu_(found, torch.zeros(35))
    bias_relu_backward_(grad, found)
    assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(grad, expected_grad)


def test_the_number_of_threads_changes_no_bit() -> None:
    x = torch.randn(301, 40)
    sums = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        out, grad = x.clone(), x.clone()
        bias_relu_(out, torch.ones(40))
        sums.append((out, grad, bias_relu_backward_(grad, out)))
    assert all(torch.equal(a, b) for a, b in zip(*sums, strict=True))


def test_unsupported_tensors() -> None:
    x, up, out = torch.randn(2, 4), nn.Linear(4, 8), nn.Linear(8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert feed_forward(x, up, out) is None
    with dispatch.only(dispatch.EAGER):
        assert feed_forward(x, up, out) is None
    assert feed_forward(x.double(), up, out) is None
    with torch.inference_mode():
        assert feed_forward(x[:1], up, out) is None
