"""The C++ kernel of attention by distance: single gradients, rotation, and the edges of its
arithmetic; test_attention.py has the rest."""

import math

import pytest
import torch
from attention_cases import (
    DROP,
    Size,
    assert_equal,
    assert_kernel,
    distance_inputs,
    formula,
    kernel,
    results,
)
from compiler import needs_compiler
from torch import Tensor

from pe_lab.core.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.kernels.requests import Distance
from pe_lab.pe.rotation import Rotation

pytestmark = needs_compiler

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
