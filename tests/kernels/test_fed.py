"""The feed-forward with the compiled relu equals the one of plain PyTorch, value and gradient."""

import pytest
import torch
import torch.nn.functional as F
from compiler import needs_compiler
from torch import Tensor

from pe_lab.kernels import feeding, roads

pytestmark = needs_compiler

# The shape of x, and the width between.
SIZES = [((1,), 1), ((2, 7, 16), 64), ((50, 5), 37), ((3, 0, 4), 8), ((130, 20), 70)]


def drawn(shape: tuple[int, ...], width: int, dtype: torch.dtype) -> list[Tensor]:
    e = shape[-1]
    shapes = (shape, (width, e), (width,), (e + 1, width), (e + 1,))
    return [torch.randn(*s, dtype=dtype).requires_grad_() for s in shapes]


def plain(x: Tensor, up: Tensor, bias_up: Tensor, out: Tensor, bias_out: Tensor) -> Tensor:
    return F.linear(F.relu(F.linear(x, up, bias_up)), out, bias_out)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("shape", "width"), SIZES)
def test_values_and_gradients(
    shape: tuple[int, ...], width: int, dtype: torch.dtype, limit: float
) -> None:
    given = drawn(shape, width, dtype)
    found = feeding.fed(*given)
    assert "_Fed" in found.grad_fn.name()
    exact = [p.detach().double().requires_grad_() for p in given]
    wanted = plain(*exact)
    direction = torch.randn_like(found)
    grads = torch.autograd.grad(found, given, direction)
    wanted_grads = torch.autograd.grad(wanted, exact, direction.double())
    for x, y in zip((found, *grads), (wanted, *wanted_grads), strict=True):
        assert x.shape == y.shape
        largest = float(y.detach().abs().max()) if y.numel() else 1.0
        torch.testing.assert_close(x.double(), y, atol=limit * largest, rtol=0)


def test_relu_is_that_of_pytorch() -> None:
    values = torch.tensor([-1.0, -0.0, 0.0, 2.0, torch.nan, torch.inf, -torch.inf])
    x = values.repeat(3, 5)
    given = x.clone().requires_grad_()
    expected = given.relu()
    (expected_grad,) = torch.autograd.grad(expected, given, torch.ones_like(x))
    found, grad = x.clone(), torch.ones_like(x)
    feeding._rectify(found, torch.zeros(35))
    feeding._rectify_back(grad, found)
    assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(grad, expected_grad)


def test_the_number_of_threads_changes_no_bit() -> None:
    x = torch.randn(301, 40)
    sums = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        out, grad = x.clone(), x.clone()
        feeding._rectify(out, torch.ones(40))
        sums.append((out, grad, feeding._rectify_back(grad, out)))
    assert all(torch.equal(a, b) for a, b in zip(*sums, strict=True))


def test_what_the_kernel_cannot_take_is_done_in_pytorch() -> None:
    given = drawn((4, 6), 8, torch.float32)
    whole = feeding.fed(*given)

    def by_name(out: Tensor) -> str:
        assert out.grad_fn is not None
        torch.testing.assert_close(out.float(), whole, atol=0.3, rtol=0.1)
        return out.grad_fn.name()

    with torch.autocast("cpu", torch.bfloat16):
        assert "_Fed" not in by_name(feeding.fed(*given))
    with roads.only(roads.EAGER):
        assert "_Fed" not in by_name(feeding.fed(*given))
    mapped = torch.func.vmap(lambda x: feeding.fed(x, *given[1:]))(given[0][None])
    assert "_Fed" not in by_name(mapped[0])
