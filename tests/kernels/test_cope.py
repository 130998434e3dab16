"""CoPE's C++ kernel at the edges of its arithmetic; test_attention.py has the rest."""

import math

import pytest
import torch
from attention_cases import Size, cope_inputs, kernel
from compiler import needs_compiler

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
