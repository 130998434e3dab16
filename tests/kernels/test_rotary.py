"""The compiled rotation equals complex multiplication in value and gradient, however x lies."""

import pytest
import torch
from compiler import needs_compiler
from torch import Tensor

from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu import rotary

pytestmark = needs_compiler

# Sequences, heads, tokens, width: odd ones, whole vectors and what is left over, none at all.
SIZES = [(1, 1, 1, 2), (2, 3, 70, 64), (3, 1, 5, 38), (2, 2, 65, 6), (0, 2, 3, 4), (2, 4, 0, 8)]


def drawn(b: int, h: int, t: int, d: int, *, dtype: torch.dtype, turns: str) -> tuple[Tensor, ...]:
    """As attention has them: queries among keys and values."""
    qkv = torch.randn(b, t, 3 * h * d, dtype=dtype)
    x = qkv[..., h * d : 2 * h * d].view(b, t, h, d).transpose(1, 2)
    outer = {"one": (1, 1), "a sequence": (b, 1), "a head": (1, h), "each": (b, h)}[turns]
    angle, size = torch.randn(2, *outer, t, d // 2, dtype=torch.float64)
    return x.requires_grad_(), torch.polar(1 + size.abs(), angle)


def expected(x: Tensor, turn: Tensor, halves: bool) -> Tensor:
    """By the definition, in complex128."""
    x = x.double()
    pairs = torch.complex(*(x.chunk(2, -1) if halves else (x[..., ::2], x[..., 1::2])))
    y = pairs * turn
    if halves:
        return torch.cat((y.real, y.imag), -1)
    return torch.stack((y.real, y.imag), -1).flatten(-2)


@pytest.mark.parametrize("turns", ["one", "a sequence", "a head", "each"])
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients(
    size: tuple[int, ...], dtype: torch.dtype, limit: float, halves: bool, turns: str
) -> None:
    x, turn = drawn(*size, dtype=dtype, turns=turns)
    assert rotary.cpu_kernel_passes("rotary", dtype, rotary._check)
    found = rotary.rotate(x, turn, halves=halves)
    assert x.numel() == 0 or "_Rotate" in found.grad_fn.name()
    wanted = expected(x, turn, halves)
    torch.testing.assert_close(found.double(), wanted, atol=limit, rtol=limit)
    direction = torch.randn_like(found)
    (grad,) = torch.autograd.grad(found, x, direction)
    (wanted_grad,) = torch.autograd.grad(wanted, x, direction.double())
    torch.testing.assert_close(grad.double(), wanted_grad.double(), atol=limit, rtol=limit)


@pytest.mark.parametrize("halves", [False, True])
def test_the_number_of_threads_changes_no_bit(halves: bool) -> None:
    x, turn = drawn(3, 2, 200, 24, dtype=torch.float32, turns="a sequence")
    one = rotary.rotate(x, turn, halves=halves)
    torch.set_num_threads(3)
    assert torch.equal(rotary.rotate(x, turn, halves=halves), one)


def test_what_the_kernel_cannot_take_is_done_in_pytorch() -> None:
    x, turn = drawn(2, 2, 5, 8, dtype=torch.float32, turns="each")
    whole = rotary.rotate(x, turn, halves=False)

    def by_name(out: Tensor) -> str:
        assert out.grad_fn is not None
        torch.testing.assert_close(out.float(), whole, atol=0.1, rtol=0.1)
        return out.grad_fn.name()

    assert "_Rotate" in by_name(whole)
    assert "_Rotate" not in by_name(rotary.rotate(x, turn.requires_grad_(), halves=False))
    turn = turn.detach()
    assert "_Rotate" not in by_name(rotary.rotate(x.bfloat16(), turn, halves=False))
    with dispatch.only(dispatch.EAGER):
        assert "_Rotate" not in by_name(rotary.rotate(x, turn, halves=False))
