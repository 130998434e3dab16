"""The C++ kernel of dropout has the mask of pe_lab.core.dropout, bit for bit."""

import pytest
import torch
from compiler import needs_compiler

from pe_lab.core.dropout import Drop, attention_rows
from pe_lab.kernels.cpu.pointwise import dropout

pytestmark = needs_compiler

SHAPES = [(5,), (3, 1), (2, 7, 64), (4, 3, 17), (2, 3, 70, 33), (0, 4), (3, 129)]
DROP = Drop(0.5, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.999])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(shape: tuple[int, ...], p: float, dtype: torch.dtype) -> None:
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
