"""Rotation inside the attention kernel is used only for encodings that rotate as RoPE does."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from compiler import needs_compiler
from torch import Tensor

from pe_lab.kernels.attention import FastMultiHeadAttention
from pe_lab.models.attention import MultiHeadAttention
from pe_lab.pe.base import AttentionInputs, Dims
from pe_lab.pe.rope import RoPE

pytestmark = needs_compiler


class RotatedAndHalved(RoPE):
    def rotate(self, q: Tensor, k: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        q, k = super().rotate(q, k, inputs)
        return q / 2, k


class Tempered(RoPE):
    """A learned temperature of the queries."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims, 10000, "half")
        self.temperature = torch.nn.Parameter(torch.ones(()))

    def scale_queries(self, x_BHTD: Tensor, pos_q_BT: Tensor) -> Tensor:
        return x_BHTD * self.temperature


@pytest.mark.parametrize(
    "make",
    [lambda d: RotatedAndHalved(d, 10000, "interleaved"), Tempered],
    ids=["rotated", "scaled"],
)
def test_a_change_of_rope_is_not_taken_for_rope(make: Callable[[Dims], RoPE]) -> None:
    """Value and gradients are those of the hooks."""
    pe = make(Dims(8, 2, 1, 10, 6, 6))
    x, pos = torch.randn(3, 6, 8), torch.arange(6)[None]
    found = []
    for fast in (True, False):
        torch.manual_seed(0)
        attention = MultiHeadAttention(
            SimpleNamespace(n_heads=2, d_model=8, window=None, logn="none"), pe
        )
        if fast:
            attention.__class__ = FastMultiHeadAttention
            attention.choose_kernel()  # type: ignore[attr-defined]
        out, _ = attention(x, pos)
        found.append([out, *torch.autograd.grad(out.square().sum(), [*attention.parameters()])])
    for mine, plain in zip(*found, strict=True):
        torch.testing.assert_close(mine, plain, atol=1e-4, rtol=1e-4)
