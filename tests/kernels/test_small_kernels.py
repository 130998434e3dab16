"""The C++ kernels of the feed-forward and of dropout equal PyTorch's operations."""

import pytest
import torch
import torch.nn.functional as F
from compiler import needs_compiler
from torch import nn

from pe_lab.core.dropout import Drop, attention_rows
from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu.pointwise import bias_relu_, bias_relu_backward_, dropout, feed_forward

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


SHAPES = [(5,), (3, 1), (2, 7, 64), (4, 3, 17), (2, 3, 70, 33), (0, 4), (3, 129)]
DROP = Drop(0.5, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.999])
@pytest.mark.parametrize("shape", SHAPES)
def test_dropout_values_and_gradients(shape: tuple[int, ...], p: float, dtype: torch.dtype) -> None:
    drop = Drop(p, 0x123456789ABCDEF)
    x, residual, grad = torch.randn(3, *shape, dtype=dtype).requires_grad_()
    found, expected = dropout(x, drop), drop(x)
    assert torch.equal(found, expected)
    (grad_expected,) = torch.autograd.grad(expected, x, grad)
    assert torch.equal(torch.autograd.grad(found, x, grad)[0], grad_expected)
    both = dropout(x, drop, None, residual)
    torch.testing.assert_close(both, residual + expected)
    grads = torch.autograd.grad(both, (x, residual), grad)
    assert torch.equal(grads[0], grad_expected)
    assert torch.equal(grads[1], grad)


def test_row_numbers() -> None:
    x = torch.randn(2, 3, 40)
    rows = torch.tensor([[7, 2**33 + 1, 0], [1, 5, 9]])
    assert torch.equal(dropout(x, DROP, rows), DROP(x, rows))
    assert torch.equal(dropout(x, DROP, rows[:1]), DROP(x, rows[:1].expand(2, 3)))
    rows = torch.tensor([3, 1], dtype=torch.int32)
    assert torch.equal(dropout(x[:, 0], DROP, rows), DROP(x[:, 0], rows.long()))
    weights = torch.rand(2, 3, 20, 50)
    rows = attention_rows(weights)
    assert torch.equal(dropout(weights, DROP, rows), DROP(weights, rows))


@pytest.mark.parametrize("threads", [1, 3])
def test_strides_and_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    x = torch.randn(300, 70, 2)[..., 0].t()
    assert torch.equal(dropout(x, DROP), DROP(x))


def test_every_thread_flushes_denormals_if_the_caller_does() -> None:
    # Another test may have trained, which flushes them.
    torch.set_flush_denormal(False)
    x = torch.full((3000, 70), 1e-40)
    torch.set_num_threads(3)
    try:
        assert dropout(x, Drop(0.0, 5)).all()
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor cannot flush denormals")
        assert not dropout(x, Drop(0.0, 5)).view(torch.int32).any()
    finally:
        torch.set_flush_denormal(False)


def test_dropped_elements_are_zero_even_if_nan() -> None:
    x = torch.full((4, 50), torch.nan)
    assert torch.equal(dropout(x, DROP).isnan(), DROP(x).isnan())
    assert 0 < dropout(x, DROP).isnan().sum() < x.numel()


def test_rows_changed_before_the_backward_pass_are_refused() -> None:
    x = torch.randn(3, 40, requires_grad=True)
    rows = torch.tensor([3, 1, 2])
    out = dropout(x, DROP, rows)
    rows.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("residual", [torch.zeros(40), torch.zeros(3, 40, dtype=torch.float64)])
def test_a_residual_of_another_shape_or_type_is_refused(residual: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="the residual is"):
        dropout(torch.randn(3, 40), DROP, None, residual)
