"""The C++ kernels of CoPE and of attention by distance at the edges of their arithmetic."""

import math
from collections.abc import Callable

import pytest
import torch
from attention_cases import (
    DROP,
    Size,
    assert_equal,
    assert_kernel,
    cope_inputs,
    distance_inputs,
    formula,
    kernel,
    results,
)
from compiler import needs_compiler
from torch import Tensor

from docs import facts
from pe_lab.core.dropout import Drop
from pe_lab.core.instantiate import instantiate
from pe_lab.kernels import dispatch
from pe_lab.kernels.apply import FastMultiHeadAttention
from pe_lab.kernels.requests import Distance
from pe_lab.models.attention import MultiHeadAttention
from pe_lab.models.transformer import TransformerConfig
from pe_lab.pe.base import AttentionInputs, Dims
from pe_lab.pe.functional import Rotation
from pe_lab.pe.rope import RoPE

pytestmark = needs_compiler

cope = kernel("cope")


def test_open_gates_count_whole_positions_up_to_the_last_of_the_table() -> None:
    """A sum of gates that are exactly 1 in rounding: position i - j + 1, or the last."""
    ones = torch.ones(1, 1, 40, 16, dtype=torch.float64)
    table = torch.randn(7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tensors = [100 * ones, ones, torch.eye(40, 16, dtype=torch.float64)[None, None]]
    out = cope(*tensors, 100 * ones, 9 * ones, table, 1.0, None)
    distance = torch.arange(40)[:, None] - torch.arange(40)
    logits = 100 * table.sum(-1)[(distance + 1).clamp(0, 6)]
    weights = logits.masked_fill(distance < 0, -math.inf).softmax(-1)
    torch.testing.assert_close(out[0, 0], weights @ tensors[2][0, 0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("name", ["q", "k", "v", "table"])
def test_numbers_that_are_not_finite(name: str, bad: float, dtype: torch.dtype) -> None:
    """NaN stays NaN, none crashes, and earlier queries see none of it."""
    q, k, v, *_, table = cope_inputs(Size(1, 1, 70, 70, 8), "keys", 9, dtype)
    leaves = {"q": q.clone(), "k": k.clone(), "v": v.clone(), "table": table.clone()}
    leaves[name][..., 5, :] = bad
    q, k, v, table = (x.requires_grad_() for x in leaves.values())
    out = cope(q, k, v, q, k, table, 1.0, None)
    grads = torch.autograd.grad(out.sum(), (q, k, v, table))
    if name in "qk":
        assert bool(out[:, :, :5].isfinite().all())
    if math.isnan(bad):
        seen = slice(None) if name == "table" else 5
        assert bool(out[:, :, seen].isnan().any())
        assert bool(grads[0][:, :, seen].isnan().any())


SIZE = Size(2, 2, 70, 90, 16)


def rotation(size: Size, halves: bool, of_each: bool) -> Rotation:
    """Not of length one, so that a gradient rotated the wrong way is seen."""
    first = (size.b, size.h) if of_each else (1, 1)
    angle = torch.randn(*first, size.s, size.d // 2, dtype=torch.float64)
    factors = torch.polar(1 + angle.abs(), 9 * angle)
    return Rotation(factors[:, :, size.s - size.t :] * 2, factors, halves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("of_each", [False, True])
@pytest.mark.parametrize(
    "size",
    [Size(2, 3, 5, 5, 4), Size(1, 2, 131, 131, 38), Size(3, 2, 1, 70, 8), Size(2, 9, 65, 137, 16)],
    ids=str,
)
def test_rotation_inside_the_kernel(
    size: Size, of_each: bool, halves: bool, dtype: torch.dtype
) -> None:
    by = rotation(size, halves, of_each)
    q, k, v, bias = distance_inputs(size, dtype)

    def found(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, drop: Drop | None) -> Tensor:
        return kernel("rotary_distance")(q, k, v, bias, by, drop)

    def expected(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, drop: Drop | None) -> Tensor:
        return formula("rotary_distance")(q, k, v, bias, by, drop)

    for drop in (None, DROP):
        assert_equal(found, expected, [q / 4, k / 4, v, bias], drop)


@pytest.mark.parametrize("of", ["queries", "keys"])
def test_a_learned_rotation_is_left_to_the_caller(of: str) -> None:
    """As by a learned temperature of the queries: the kernel has no gradient for it."""
    size = Size(2, 3, 5, 5, 4)
    by, (q, k, v, _) = rotation(size, False, False), distance_inputs(size, torch.float64)
    learned = torch.ones(1, dtype=torch.float64, requires_grad=True)
    scaled = {"queries": (by.q * learned, by.k), "keys": (by.q, by.k * learned)}[of]
    by_learned = Rotation(*scaled, False)
    assert dispatch.attend(Distance(q=q, k=k, v=v, rotation=by)) is not None
    assert dispatch.attend(Distance(q=q, k=k, v=v, rotation=by_learned)) is None


@pytest.mark.parametrize("size", [30.0, 1e3, 1e-30])
def test_large_and_tiny_logits(size: float) -> None:
    tensors = distance_inputs(SIZE, torch.float64)
    tensors[:3] = (x * size for x in tensors[:3])
    assert_kernel("distance", tensors, DROP, tolerance=1e-8)


@pytest.mark.parametrize(
    "bias", [-torch.arange(93.0), torch.full((93,), 1024 * math.log(2))], ids=["steep", "large"]
)
def test_far_and_large_biases(bias: Tensor) -> None:
    """Weights that underflow, and powers that would overflow but for the maximum."""
    *qkv, _ = distance_inputs(SIZE, torch.float64)
    assert_kernel("distance", [*qkv, bias.double().expand(2, 93)], DROP)


def test_a_bias_of_minus_infinity_masks_a_distance() -> None:
    q, k, v, bias = distance_inputs(Size(1, 2, 150, 150, 16), torch.float64)
    bias[:, 3:100] = -math.inf
    found, expected = (
        attend(q, k, v, bias, None) for attend in (kernel("distance"), formula("distance"))
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("argument", [0, 1, 2, 3])
def test_nan_stays_nan(argument: int) -> None:
    tensors = [x.clone() for x in distance_inputs(SIZE, torch.float64)]
    tensors[argument][(-1, 66) if argument == 3 else (-1, -1, 4)] = math.nan
    found, expected = (
        results(attend, tensors, None) for attend in (kernel("distance"), formula("distance"))
    )
    assert [bool(x.isnan().any()) for x in found] == [bool(x.isnan().any()) for x in expected]
    assert bool(found[0].isnan().any())


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
            instantiate(
                {**facts.section("transformer", "model"), "n_heads": 2, "d_model": 8},
                "model",
                TransformerConfig,
            ),
            pe,
        )
        if fast:
            attention.__class__ = FastMultiHeadAttention
            attention.choose_kernel()  # type: ignore[attr-defined]
        out, _ = attention(x, pos)
        found.append([out, *torch.autograd.grad(out.square().sum(), [*attention.parameters()])])
    for mine, plain in zip(*found, strict=True):
        torch.testing.assert_close(mine, plain, atol=1e-4, rtol=1e-4)
