"""Queries, keys and values by the kernel are those of plain PyTorch, value and gradient."""

import pytest
import torch
import torch.nn.functional as F
from compiler import needs_compiler
from torch import Tensor

from pe_lab.common.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu import bias_relu, distance, qkv

pytestmark = needs_compiler

# What is made, the leaves it is made of, and directions of its gradients.
Side = tuple[Tensor | list[Tensor], list[Tensor], list[Tensor]]


def drawn(b: int, t: int, h: int, d: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x, weight and bias."""
    shapes = (b, t, h * d), (3 * h * d, h * d), (3 * h * d,)
    return [torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in shapes]


def plain(x: Tensor, weight: Tensor, bias: Tensor, h: int) -> list[Tensor]:
    parts = F.linear(x, weight, bias).chunk(3, -1)
    return [part.view(*x.shape[:2], h, -1).transpose(1, 2) for part in parts]


def found_by_kernel(*given: Tensor, h: int) -> list[Tensor]:
    parts = qkv.project_qkv(*given, h)
    assert parts is not None
    return list(parts)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("shape", [(2, 7, 3, 4), (1, 1, 1, 1), (5, 130, 4, 8), (2, 3, 5, 7)])
def test_values_and_gradients(
    shape: tuple[int, int, int, int], dtype: torch.dtype, limit: float
) -> None:
    given, h = drawn(*shape, dtype=dtype), shape[2]
    exact = [x.detach().double().requires_grad_() for x in given]
    made, wanted = found_by_kernel(*given, h=h), plain(*exact, h)
    ways = [torch.randn_like(part) for part in made]
    # As attention's kernel leaves them, as autograd may, and of some alone.
    for drop in (None, Drop(0.3, 7)):
        both = distance.distance(*made, None, drop), distance.distance(*wanted, None, drop)
        compare([(both[0], given, ways[:1]), (both[1], exact, ways[:1])], limit)
    compare([(made, given, ways), (wanted, exact, ways)], limit)
    compare([(made[1], given, ways[1:2]), (wanted[1], exact, ways[1:2])], limit)


def compare(sides: list[Side], limit: float) -> None:
    results = []
    for made, leaves, ways in sides:
        made = [made] if isinstance(made, Tensor) else made
        of = [way.to(part.dtype) for way, part in zip(ways, made, strict=True)]
        grads = torch.autograd.grad(made, leaves, of, retain_graph=True)
        results.append([*made, *grads])
    for x, y in zip(*results, strict=True):
        largest = max(1.0, float(y.detach().abs().max()))
        torch.testing.assert_close(x.double(), y, atol=limit * largest, rtol=0)


def test_gradients_are_put_together_whatever_their_order() -> None:
    ways = torch.randn(3, 2, 4, 5, 3)
    expected = ways.permute(1, 3, 0, 2, 4).reshape(10, 36)
    together = torch.empty(2, 5, 3, 4, 3).permute(2, 0, 3, 1, 4).copy_(ways)
    one = qkv._one_matrix(tuple(together))
    assert torch.equal(one, expected)
    assert one.data_ptr() == together.data_ptr()
    for given in (ways, together.flip(0), [together[0], ways[1], together[2]]):
        whole = torch.stack(list(given)).permute(1, 3, 0, 2, 4).reshape(10, 36)
        assert torch.equal(qkv._one_matrix(tuple(given)), whole)


def test_the_number_of_threads_changes_no_bit() -> None:
    x, bias = torch.randn(301, 40), torch.randn(40)
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        added = x.clone()
        bias_relu.add_bias(added, bias)
        assert torch.equal(added, x + bias)
        found.append(bias_relu.bias_gradient(x))
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], x.sum(0))


def test_what_the_kernel_cannot_take_it_leaves() -> None:
    x, weight, bias = drawn(2, 5, 3, 4, torch.float32)
    with dispatch.only(dispatch.EAGER):
        assert qkv.project_qkv(x, weight, bias, 3) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert qkv.project_qkv(x, weight, bias, 3) is None
    assert qkv.project_qkv(x.double(), weight, bias, 3) is None
