"""FLOATER's path with its gradient written out equals the plain one."""

import pytest
import torch

from pe_lab.kernels.floater import FastSlope
from pe_lab.pe.floater import Slope


@pytest.mark.parametrize(("n", "steps"), [(2, 1), (33, 1), (7, 3)])
def test_path_and_gradients(n: int, steps: int) -> None:
    torch.manual_seed(0)
    plain = Slope(6).double()
    fast = FastSlope(6).double()
    fast.load_state_dict(plain.state_dict())
    start = torch.randn(6, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(n, 6, dtype=torch.float64)
    found = []
    for slope in (plain, fast):
        path = slope.path(start, n, steps, 0.3)
        leaves = [start, *slope.parameters()]
        found.append([path, *torch.autograd.grad((path * direction).sum(), leaves)])
    assert torch.equal(found[0][0], found[1][0])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
    assert all(bool(x.any()) for x in found[1])


def test_a_single_position_is_the_start() -> None:
    start = torch.randn(6, requires_grad=True)
    path = FastSlope(6).path(start, 1, 2, 0.3)
    assert torch.equal(path, start[None])
    path.sum().backward()
    assert torch.equal(start.grad, torch.ones(6))
