"""Attention that turns queries and keys on its way is that of turned queries and keys."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from compiler import needs_compiler
from held import DROP, Size, hold
from torch import Tensor

from pe_lab.common.dropout import Drop
from pe_lab.kernels import dispatch, reference
from pe_lab.kernels.cpu import distance
from pe_lab.kernels.cpu.rotary import rotate
from pe_lab.kernels.rotary import Rotation
from pe_lab.models.attention import MultiHeadAttention
from pe_lab.pe.base import Dims
from pe_lab.pe.rope import RoPE

pytestmark = needs_compiler

# Blocks too short and too long, fewer queries than keys, odd vectors, many heads and few.
SIZES = [
    Size(2, 3, 5, 5, 4),
    Size(1, 2, 131, 131, 38),
    Size(3, 2, 1, 70, 8),
    Size(2, 9, 65, 137, 16),
]


def turns(size: Size, halves: bool, of_each: bool) -> Rotation:
    """Not of length one, so that a gradient turned the wrong way is seen."""
    first = (size.b, size.h) if of_each else (1, 1)
    angle = torch.randn(*first, size.s, size.d // 2, dtype=torch.float64)
    turn = torch.polar(1 + angle.abs(), 9 * angle)
    return Rotation(turn[:, :, size.s - size.t :] * 2, turn, halves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("of_each", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients(size: Size, of_each: bool, halves: bool, dtype: torch.dtype) -> None:
    made = turns(size, halves, of_each)
    qkv = torch.randn(3, size.b, size.h, size.s, size.d, dtype=dtype)
    bias = torch.randn(size.h, size.s, dtype=dtype)

    def found(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, drop: Drop | None) -> Tensor:
        return distance.rotary_distance(q, k, v, bias, made, drop)

    def eager(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, drop: Drop | None) -> Tensor:
        with dispatch.only(dispatch.EAGER):
            q, k = (rotate(x, turn, halves=halves) for x, turn in ((q, made.q), (k, made.k)))
        return reference.distance(q, k, v, bias, drop)

    given = [qkv[0, :, :, size.s - size.t :] / 4, qkv[1] / 4, qkv[2], bias]
    for drop in (None, DROP):
        hold(found, eager, given, drop)


@pytest.mark.parametrize("of", ["queries", "keys"])
def test_turns_that_are_learned_are_not_turned_on_the_way(of: str) -> None:
    """As by a learned temperature of the queries: the kernel has no gradient for it."""
    size = SIZES[0]
    made, (q, k, v) = turns(size, False, False), torch.randn(3, 2, 3, 5, 4, dtype=torch.float64)
    learned = torch.ones(1, dtype=torch.float64, requires_grad=True)
    by_learned = (
        Rotation(made.q * learned, made.k, False)
        if of == "queries"
        else Rotation(made.q, made.k * learned, False)
    )
    assert dispatch.rotary_distance(q, k, v, None, made, None) is not None
    assert dispatch.rotary_distance(q, k, v, None, by_learned, None) is None


class TurnedAndHalved(RoPE):
    def turned(self, x_BHTD: Tensor, turn: Tensor) -> Tensor:
        return super().turned(x_BHTD, turn) / 2


class Tempered(RoPE):
    """A learned temperature of the queries."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims, 10000, "half")
        self.temperature = torch.nn.Parameter(torch.ones(()))

    def grown(self, x_BHTD: Tensor, pos_q_BT: Tensor) -> Tensor:
        return x_BHTD * self.temperature


@pytest.mark.parametrize(
    "make", [lambda d: TurnedAndHalved(d, 10000, "interleaved"), Tempered], ids=["turned", "grown"]
)
def test_a_change_of_rope_is_not_taken_for_rope(make: Callable[[Dims], RoPE]) -> None:
    """Value and gradients are those of the hooks."""
    pe = make(Dims(8, 2, 1, 10, 6, 6))
    x, pos = torch.randn(3, 6, 8), torch.arange(6)[None]
    found = []
    for fast in (True, False):
        torch.manual_seed(0)
        attention = MultiHeadAttention(SimpleNamespace(n_heads=2, d_model=8, window=None), pe, fast)
        out, _ = attention(x, pos, 6, None, None)
        leaves = [*attention.parameters()]
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for mine, plain in zip(*found, strict=True):
        torch.testing.assert_close(mine, plain, atol=1e-4, rtol=1e-4)


def test_turns_are_made_for_a_kernel_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, or a machine without a compiler, would make them twice."""
    asked = []
    monkeypatch.setattr(RoPE, "rotation", lambda *_: asked.append(1))
    pe = RoPE(Dims(8, 2, 1, 10, 6, 6), 10000, "half")
    attention = MultiHeadAttention(SimpleNamespace(n_heads=2, d_model=8, window=None), pe, True)
    for backend, times in (("cpu", 1), ("chunked", 0), (dispatch.EAGER, 0)):
        asked.clear()
        with dispatch.only(backend):
            attention(torch.randn(3, 6, 8), torch.arange(6)[None], 6, None, None)
        assert len(asked) == times
