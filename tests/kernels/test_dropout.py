"""The compiled dropout of hidden states and of attention weights is pe_lab.dropout, bit for bit."""

import pytest
import torch
from compiler import needs_compiler

from pe_lab.common.dropout import Drop, attention_rows
from pe_lab.kernels.cpu import dropout
from pe_lab.kernels.dropout import dropout as any_dropout

pytestmark = needs_compiler

SHAPES = [(5,), (3, 1), (2, 7, 64), (4, 3, 17), (2, 3, 70, 33), (0, 4), (3, 129)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.999])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(shape: tuple[int, ...], p: float, dtype: torch.dtype) -> None:
    drop = Drop(p, 0x123456789ABCDEF)
    x, residual, grad = torch.randn(3, *shape, dtype=dtype).requires_grad_()
    found, expected = dropout.dropout(x, drop), drop(x)
    assert torch.equal(found, expected)
    (grad_found,) = torch.autograd.grad(found, x, grad)
    (grad_expected,) = torch.autograd.grad(expected, x, grad)
    assert torch.equal(grad_found, grad_expected)
    both = dropout.dropout(x, drop, None, residual)
    torch.testing.assert_close(both, residual + expected)
    grads = torch.autograd.grad(both, (x, residual), grad)
    assert torch.equal(grads[0], grad_expected)
    assert torch.equal(grads[1], grad)


def test_rows_that_stand_elsewhere() -> None:
    drop = Drop(0.5, 5)
    x = torch.randn(2, 3, 40)
    rows = torch.tensor([[7, 2**33 + 1, 0], [1, 5, 9]])
    assert torch.equal(dropout.dropout(x, drop, rows), drop(x, rows))
    assert torch.equal(dropout.dropout(x, drop, rows[:1]), drop(x, rows[:1].expand(2, 3)))


def test_attention_weights_of_the_last_queries() -> None:
    drop = Drop(0.5, 5)
    weights = torch.rand(2, 3, 20, 50)
    rows = attention_rows(weights)
    assert torch.equal(dropout.dropout(weights, drop, rows), drop(weights, rows))


def test_strides_and_threads() -> None:
    drop = Drop(0.5, 5)
    x = torch.randn(300, 70, 2)[..., 0].t()
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(dropout.dropout(x, drop), drop(x))
    finally:
        torch.set_num_threads(before)


def test_every_thread_flushes_denormals_if_the_caller_does() -> None:
    x = torch.full((3000, 70), 1e-40)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    # Another test may have trained, which flushes them.
    torch.set_flush_denormal(False)
    try:
        assert dropout.dropout(x, Drop(0.0, 5)).all()
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor cannot flush denormals")
        assert not dropout.dropout(x, Drop(0.0, 5)).view(torch.int32).any()
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


def test_what_is_dropped_is_zero_whatever_it_was() -> None:
    drop = Drop(0.5, 5)
    x = torch.full((4, 50), torch.nan)
    assert torch.equal(dropout.dropout(x, drop).isnan(), drop(x).isnan())
    assert 0 < dropout.dropout(x, drop).isnan().sum() < x.numel()


def test_rows_changed_before_the_backward_pass_are_told() -> None:
    x = torch.randn(3, 40, requires_grad=True)
    rows = torch.tensor([3, 1, 2])
    out = dropout.dropout(x, Drop(0.5, 5), rows)
    rows.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_rows_of_another_type() -> None:
    x, rows = torch.randn(3, 40), torch.tensor([3, 1, 2], dtype=torch.int32)
    assert torch.equal(dropout.dropout(x, Drop(0.5, 5), rows), Drop(0.5, 5)(x, rows.long()))


@pytest.mark.parametrize("residual", [torch.zeros(40), torch.zeros(3, 40, dtype=torch.float64)])
def test_a_residual_of_another_shape_or_type_is_refused(residual: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="the residual is"):
        dropout.dropout(torch.randn(3, 40), Drop(0.5, 5), None, residual)


def test_under_torch_func_plain_pytorch_serves() -> None:
    drop, x = Drop(0.5, 5), torch.randn(4, 30)
    found = torch.func.grad(lambda x: any_dropout(x, drop).square().sum())(x)
    assert torch.equal(found, 2 * drop(drop(x)))
    both = torch.func.vmap(lambda x: any_dropout(x, drop), 0)(x.view(2, 2, 30))
    assert torch.equal(both, torch.stack([drop(part) for part in x.view(2, 2, 30)]))
