"""Rotations beyond RoPE, against their formulas in loops and against code by others."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from agreement import SIZES, Size, agree, causal, first_layer
from naive import Sight, attend, plain_value, softplus, turned
from torch import Tensor
from variants import scattered

from pe_lab.pe.base import AttentionInputs


def xpos(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    """By the distance alone: nothing here knows where the exponents are counted from."""
    n, keys = s.distance(b, i, j), s.keys
    q, k = s.q[b, h, i], s.k[b, h, j]
    total = torch.zeros((), dtype=q.dtype)
    for m in range(s.width // 2):
        z = (2 * m / s.width + keys["gamma"]) / (1 + keys["gamma"])
        angle = n * keys["base"] ** (-2 * m / s.width)
        a, c = q[2 * m], q[2 * m + 1]
        d, e = k[2 * m], k[2 * m + 1]
        rotated = (a * d + c * e) * math.cos(angle) + (a * e - c * d) * math.sin(angle)
        total = total + z ** (n / keys["scale_base"]) * rotated
    return total / math.sqrt(s.width)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("choice", [{}, {"base": 10, "scale_base": 3, "gamma": 0.9}], ids=str)
def test_xpos(choice: dict[str, Any], size: Size) -> None:
    agree("xpos", choice, size, partial(attend, logit=xpos, value=plain_value))


def step(s: Sight, b: int, h: int, t: int, m: int) -> Tensor:
    """The angle that token t adds for pair m of head h, before the frequency."""

    def unit(u: int) -> Tensor:
        parts = s.x[b, u].split(s.width)
        return torch.cat([part / (part @ part + 1e-6).sqrt() for part in parts])

    channel = h * s.width // 2 + m
    kernel = s.own["convolution.weight"][channel, 0]
    w = torch.zeros((), dtype=s.x.dtype)
    for back in range(len(kernel)):
        if t - back >= 0:
            hidden = s.own["down.weight"] @ unit(t - back)
            w = w + kernel[len(kernel) - 1 - back] * (s.own["up.weight"][channel] @ hidden)
    if s.keys["bias"]:
        w = w + s.own["log_bias"][channel].exp()
    if s.keys["gate"]:
        w = w / (1 + (-(s.own["gate.weight"][h] @ unit(t)) - s.own["gate.bias"][h]).exp())
    return w


def selective_rope(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    angles = []
    for m in range(s.width // 2):
        between = [step(s, b, h, t, m) for t in range(j + 1, s.key_of(i) + 1)]
        angles.append(sum(between, torch.zeros(())) * s.keys["base"] ** (-2 * m / s.width))
    return turned(s, b, h, i, j, angles, "half")


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    "choice",
    [
        {"base": 10},
        {"base": 3, "rank": 2, "kernel": 2},
        {"base": 10, "rank": 3, "gate": True},
        {"base": 10, "rank": 3, "kernel": 1, "bias": True},
        {"rank": 3, "kernel": 7, "gate": True, "bias": True},
    ],
    ids=str,
)
def test_selective_rope(choice: dict[str, Any], size: Size) -> None:
    agree("selective_rope", choice, size, partial(attend, logit=selective_rope, value=plain_value))


@pytest.mark.parametrize("choice", [{}, {"scale_base": 3}, {"gamma": 20}, {"gamma": 1e-4}], ids=str)
def test_xpos_at_its_longest_in_float32(choice: dict[str, Any]) -> None:
    double = first_layer("xpos", choice, d_model=8, n_heads=1)
    torch.set_default_dtype(torch.float32)
    single = first_layer("xpos", choice, d_model=8, n_heads=1)
    pos = scattered(2, 40, double.max_len - 2) + 1
    pos[:, 0], pos[:, -1] = 0, double.max_len - 1
    q, k, v = torch.randn(3, 2, 1, 40, 8).unbind(0)
    outs = []
    for encoding, dtype in ((single, torch.float32), (double, torch.float64)):
        # Large ones: nothing else may be what keeps the products finite.
        inputs = [(t * 30).to(dtype).requires_grad_() for t in (q, k)]
        inputs.append(v.to(dtype).requires_grad_())
        scene = AttentionInputs(inputs[0], *inputs, pos, pos)
        q_rotated, k_rotated = encoding.rotate(inputs[0], inputs[1], scene)
        product = q_rotated @ k_rotated.mT / math.sqrt(8)
        assert product.isfinite().all()
        out = causal(product, inputs[2])
        outs.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    for got, expected in zip(*outs, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-3)


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
def test_pope(choice: dict[str, Any], size: Size) -> None:
    agree("pope", choice, size, partial(attend, logit=pope, value=plain_value))


FOPE_LENGTH = 12


def multiplied(s: Sight, x: Tensor, h: int, position: int) -> Tensor:
    """x (D,), pair by pair times its Fourier series."""
    half, base = s.width // 2, s.keys["base"]
    kept = [
        base ** (-m / half) for m in range(half) if base ** (-m / half) >= 2 * math.pi / FOPE_LENGTH
    ]
    mixed = min(len(kept), s.width // 4)
    out = [x[0]] * s.width
    for m in range(half):
        first, second = (m, m + half) if s.keys["pairing"] == "half" else (2 * m, 2 * m + 1)
        real, imaginary = torch.ones(()), torch.tensor(float(s.keys["sin_pad"]))
        if m < mixed:
            real = sum(
                s.own["cosine"][h, w, m] * math.cos(position * omega)
                for w, omega in enumerate(kept)
            )
            imaginary = sum(
                s.own["sine"][h, w, m] * math.sin(position * omega) for w, omega in enumerate(kept)
            )
        out[first] = x[first] * real - x[second] * imaginary
        out[second] = x[first] * imaginary + x[second] * real
    return torch.stack(out)


def fope(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    q = multiplied(s, s.q[b, h, i], h, int(s.pos[b, s.key_of(i)]))
    k = multiplied(s, s.k[b, h, j], h, int(s.pos[b, j]))
    return q @ k / math.sqrt(s.width)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    "choice", [{}, {"base": 5, "sin_pad": 1}, {"base": 3, "pairing": "half"}], ids=str
)
def test_fope(choice: dict[str, Any], size: Size) -> None:
    naive = partial(attend, logit=fope, value=plain_value)
    agree("fope", choice, size, naive, width=8, train_len=FOPE_LENGTH)
