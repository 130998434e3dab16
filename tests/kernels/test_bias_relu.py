"""The compiled relu between two linear maps is that of PyTorch; within a branch that joins, see
test_joined.py."""

import torch
from compiler import needs_compiler

from pe_lab.kernels.cpu import bias_relu

pytestmark = needs_compiler


def test_relu_is_that_of_pytorch() -> None:
    values = torch.tensor([-1.0, -0.0, 0.0, 2.0, torch.nan, torch.inf, -torch.inf])
    x = values.repeat(3, 5)
    given = x.clone().requires_grad_()
    expected = given.relu()
    (expected_grad,) = torch.autograd.grad(expected, given, torch.ones_like(x))
    found, grad = x.clone(), torch.ones_like(x)
    bias_relu.bias_relu(found, torch.zeros(35))
    bias_relu.bias_relu_backward(grad, found)
    assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(grad, expected_grad)


def test_the_number_of_threads_changes_no_bit() -> None:
    x = torch.randn(301, 40)
    sums = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        out, grad = x.clone(), x.clone()
        bias_relu.bias_relu(out, torch.ones(40))
        sums.append((out, grad, bias_relu.bias_relu_backward(grad, out)))
    assert all(torch.equal(a, b) for a, b in zip(*sums, strict=True))
