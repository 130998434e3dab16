"""Rotation inside the attention kernel is used only for encodings that rotate as RoPE does."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from compiler import needs_compiler
from torch import Tensor

from pe_lab.kernels import dispatch
from pe_lab.models.attention import MultiHeadAttention
from pe_lab.pe.base import Dims
from pe_lab.pe.rope import RoPE

pytestmark = needs_compiler


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
