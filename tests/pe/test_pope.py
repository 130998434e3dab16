"""Polar coordinates against their formula in loops and against code by others."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from agreement import SIZES, Size, agree, attend_by_hooks, causal, first_layer
from naive import Sight, attend, plain_value, softplus
from torch import Tensor
from variants import sequential


def pope(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    total = torch.zeros((), dtype=s.q.dtype)
    for c in range(s.width):
        delta = s.own["phase"][h, c]
        if delta > 0:
            delta = torch.zeros(())
        if delta < -2 * math.pi:
            delta = torch.tensor(-2 * math.pi)
        turn = (-s.distance(b, i, j)) * s.keys["base"] ** (-c / s.width)
        size = softplus(s.q[b, h, i, c]) * softplus(s.k[b, h, j, c])
        total = total + size * (turn + delta).cos()
    return total / math.sqrt(s.width)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("choice", [{}, {"base": 10, "start": "uniform"}], ids=str)
def test_value_and_gradient(choice: dict[str, Any], size: Size) -> None:
    agree("pope", choice, size, partial(attend, logit=pope, value=plain_value))


@pytest.mark.parametrize("start", ["zero", "uniform"])
def test_pope_as_x_transformers(start: str) -> None:
    peer = pytest.importorskip("x_transformers.x_transformers")
    ours = first_layer("pope", {"start": start}, d_model=16, n_heads=2)
    theirs = peer.PolarEmbedding(8, 2).double()
    theirs.learned_bias.data.copy_(ours.get_parameter("phase")[:, None])
    theirs.inv_freq = 10000 ** (-torch.arange(8) / 8)
    freqs, bias = theirs(torch.arange(7))
    q, k, v = torch.randn(3, 2, 2, 7, 8).unbind(0)
    # Their softplus is in float32.
    rotated = peer.apply_polar_pos_emb(q, freqs), peer.apply_polar_pos_emb(k, freqs + bias)
    logits = (rotated[0] @ rotated[1].mT) / 8**0.5
    expected = causal(logits, v)
    got = attend_by_hooks(ours, q, k, v, torch.randn(2, 7, 16), sequential(7))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
