"""Attention that fades with what lies between: fox and stick_breaking."""

from functools import partial
from typing import Any

import pytest
import torch
from agreement import SIZES, Size, agree, attend_by_hooks, first_layer
from naive import Sight, attend, content, every_query, plain_value, sigmoid
from peers import fla_naive
from torch import Tensor
from variants import sequential


def fox(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    """The gates after the key, multiplied as probabilities are."""
    w, bias = s.own["gate.weight"][h], s.own["gate.bias"][h]
    kept = torch.ones(())
    for n in range(j + 1, s.key_of(i) + 1):
        kept = kept * sigmoid(w @ s.x[b, n] + bias)
    return content(s, b, h, i, j) + kept.log()


def stick_breaking(s: Sight) -> Tensor:
    """The stick in one's hand, broken key by key from the query back."""

    def at(b: int, h: int, i: int) -> Tensor:
        left, total = torch.ones(()), torch.zeros(s.width)
        for j in reversed(range(s.key_of(i))):
            share = sigmoid(content(s, b, h, i, j))
            total = total + left * share * s.v[b, h, j]
            left = left * (1 - share)
        return total + left * s.v[b, h, s.key_of(i)] if s.keys["remainder"] == "self" else total

    return every_query(s, at)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_fox(size: Size) -> None:
    agree("fox", {}, size, partial(attend, logit=fox, value=plain_value))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("remainder", ["none", "self"])
def test_stick_breaking(remainder: str, size: Size) -> None:
    agree("stick_breaking", {"remainder": remainder}, size, stick_breaking)


@pytest.mark.parametrize("length", [1, 13])
def test_fox_as_flash_linear_attention(length: int) -> None:
    peer = fla_naive("forgetting_attn")
    ours: Any = first_layer("fox", {}, d_model=12, n_heads=3)
    q, k, v = torch.randn(3, 2, 3, length, 4).unbind(0)
    x = torch.randn(2, length, 12)
    got = attend_by_hooks(ours, q, k, v, x, sequential(length))
    gates = torch.nn.functional.logsigmoid(ours.gate(x))
    expected = peer.naive_forgetting_attn(*(t.transpose(1, 2) for t in (q, k, v)), gates)
    # They compute in float32.
    torch.testing.assert_close(got.transpose(1, 2), expected.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 13])
def test_fox_as_x_transformers(length: int) -> None:
    peer = pytest.importorskip("x_transformers.x_transformers")
    ours: Any = first_layer("fox", {}, d_model=12, n_heads=3)
    theirs = peer.DataDependentAlibi(12, 3)
    theirs.to_forget_gates[0].load_state_dict(ours.gate.state_dict())
    q, k, v = torch.randn(3, 2, 3, length, 4).unbind(0)
    x = torch.randn(2, length, 12)
    got = attend_by_hooks(ours, q, k, v, x, sequential(length))
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    logits = (q @ k.mT / 2 + theirs(x)).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(got, logits.softmax(-1) @ v, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 13])
@pytest.mark.parametrize("remainder", ["none", "self"])
def test_stick_breaking_as_flash_linear_attention(remainder: str, length: int) -> None:
    peer = fla_naive("stickbreaking_attn")
    ours: Any = first_layer("stick_breaking", {"remainder": remainder})
    q, k, v = torch.randn(3, 2, 3, length, 4).unbind(0)
    got = attend_by_hooks(ours, q, k, v, torch.randn(2, length, 12), sequential(length))
    turned = [t.transpose(1, 2) for t in (q, k, v)]
    expected, left = peer.naive_stickbreaking_attn(*turned)
    if remainder == "self":
        expected = expected + left[..., None] * turned[2]
    torch.testing.assert_close(got.transpose(1, 2), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("remainder", ["none", "self"])
def test_a_stick_is_never_longer_than_it_was(remainder: str, dtype: torch.dtype) -> None:
    """At logits where a sigmoid is 0 or 1 to the last bit, too."""
    ours: Any = first_layer("stick_breaking", {"remainder": remainder})
    mask = torch.ones(64, 64, dtype=torch.bool).tril()[32:]
    logits = (torch.randn(2, 1, 32, 64) * torch.tensor([1.0, 300.0]).view(2, 1, 1, 1)).to(dtype)
    logits.requires_grad_()
    weights = ours.normalize(logits, mask)
    assert weights.dtype == torch.float32
    assert weights.isfinite().all()
    assert (weights >= 0).all()
    assert (weights[:, :, ~mask] == 0).all()
    own = weights.diagonal(32, -2, -1)
    if remainder == "self":
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, 32).float())
    else:
        assert (weights.sum(-1) <= 1 + 1e-6).all()
        assert (own == 0).all()
    (weights * torch.linspace(-1, 1, 64)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[0].abs().max() > 0


def test_the_first_token_breaks_no_stick() -> None:
    q, k, v = torch.randn(3, 1, 2, 1, 4).unbind(0)
    given = q, k, v, torch.randn(1, 1, 8), sequential(1)
    dropped, kept = (first_layer("stick_breaking", {"remainder": r}) for r in ("none", "self"))
    assert (attend_by_hooks(dropped, *given) == 0).all()
    assert torch.equal(attend_by_hooks(kept, *given), v)
