"""Encodings of papers and released models of 2025 and 2026, against loops and their code."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from agreement import SIZES, Size, agree, attend_by_hooks, first_layer
from formulas import rotated, sigmoid
from naive import SLOPES, Sight, attend, content, every_query, plain_value, rope, softplus
from torch import Tensor
from variants import SECTIONS, dims, sequential

from pe_lab.pe import wall as wall_module
from pe_lab.train.encodings import build_encodings


def inkling(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    width, distance = s.keys["width"], s.distance(b, i, j)
    growth = 1.0
    if (n := int(s.pos[b, s.key_of(i)]) + 1) > s.keys["floor"]:
        growth += s.keys["alpha"] * math.log(n / s.keys["floor"])
    bias = torch.zeros(())
    if distance < s.keys["extent"]:
        r = s.own["relative.weight"][h * width : (h + 1) * width] @ s.x[b, s.key_of(i)]
        bias = r @ s.own["table"][:, distance]
    return growth * (content(s, b, h, i, j) + bias)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    "choice",
    [
        {"extent": 9, "floor": 2.0},
        {"extent": 2, "floor": 3.0, "alpha": 0.7, "width": 3},
        {"extent": 4, "floor": 1.0, "alpha": 0.0},
    ],
    ids=str,
)
def test_inkling(choice: dict[str, Any], size: Size) -> None:
    agree("inkling", choice, size, partial(attend, logit=inkling, value=plain_value))


def grape_m(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    """The matrix exponential itself, of the generator times the distance."""
    first, second = s.own["plane"][h]
    generator = torch.outer(first, second) - torch.outer(second, first)
    here, there = s.key_of(i), j
    turns: Any = s.distance(b, i, j)
    if s.keys["contextual"]:
        weight, c = s.own["gate.weight"][0], s.own["gate.bias"][0]
        turns = sum((sigmoid((weight @ s.x[b, t] + c) / 16) for t in range(there, here)), 0.0)
    angle = turns * s.keys["base"] ** (-h / s.n_heads)
    turned = torch.linalg.matrix_exp(angle * generator) @ s.q[b, h, i]
    return turned @ s.k[b, h, j] / math.sqrt(s.width)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    ("base", "width", "contextual"),
    [(10000, 4, False), (3.0, 5, False), (2.0, 2, False), (3.0, 5, True)],
)
def test_grape_m(base: float, width: int, contextual: bool, size: Size) -> None:
    naive = partial(attend, logit=grape_m, value=plain_value)
    agree("grape_m", {"base": base, "contextual": contextual}, size, naive, width=width)


def test_grape_m_starts_with_a_plane_of_unit_vectors_at_right_angles() -> None:
    plane = build_encodings(SECTIONS["grape_m"], dims(d_model=30, n_heads=3))[0].plane
    eye = torch.eye(2).expand(3, 2, 2)
    torch.testing.assert_close(plane @ plane.mT, eye, rtol=1e-12, atol=1e-12)


def grape_a(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    def gate(name: str, x: Tensor) -> Tensor:
        if name not in s.own:
            return torch.zeros(())
        w = s.own[name][h]
        return softplus(w @ x / (w @ w).sqrt() / math.sqrt(s.width))

    slope = softplus(s.own["scale"][h]) * SLOPES[s.n_heads][h]
    rate = slope * (gate("query", s.q[b, h, i]) + gate("key", s.k[b, h, j]))
    return content(s, b, h, i, j) - rate * s.distance(b, i, j)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("gates", ["both", "query", "key"])
def test_grape_a(gates: str, size: Size) -> None:
    agree("grape_a", {"gates": gates}, size, partial(attend, logit=grape_a, value=plain_value))


def grape_ap(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    """The path from the key to the query, gate by gate."""
    width, here = s.keys["width"], s.key_of(i)

    def p(t: int) -> Tensor:
        return s.own["project.weight"][h * width : (h + 1) * width] @ s.x[b, t]

    total, half = content(s, b, h, i, j), width // 2
    for t in range(j + 1, here + 1):
        n = p(t) / ((p(t) @ p(t)) / width + torch.finfo(s.x.dtype).eps).sqrt()
        cos, sin = math.cos(int(s.pos[b, t])), math.sin(int(s.pos[b, t]))
        turned = [n[m] * cos + n[m + half] * sin for m in range(half)]
        turned += [n[m + half] * cos - n[m] * sin for m in range(half)]
        agreed = sum(one * other for one, other in zip(p(here), turned, strict=True)) / width
        total = total + SLOPES[s.n_heads][h] * sigmoid(agreed).log()
    return total


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("width", [2, 6])
def test_grape_ap(width: int, size: Size) -> None:
    agree("grape_ap", {"width": width}, size, partial(attend, logit=grape_ap, value=plain_value))


def wall(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    """Feature by feature, the gates after the key multiplied as probabilities are."""
    total = torch.zeros(())
    for c in range(s.width):
        w, bias = (s.own[f"gate.{name}"][h * s.width + c] for name in ("weight", "bias"))
        kept = torch.ones(())
        for t in range(j + 1, s.key_of(i) + 1):
            kept = kept * sigmoid(w @ s.x[b, t] + bias)
        total = total + s.q[b, h, i, c] * s.k[b, h, j, c] * kept
    return total / math.sqrt(s.width)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("chunk", [1, 2, 4, 16])
def test_wall(chunk: int, size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wall_module, "CHUNK", chunk)
    agree("wall", {"start": 0.5}, size, partial(attend, logit=wall, value=plain_value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_that_vanish_stay_finite(dtype: torch.dtype) -> None:
    """Gates of e^-40 and of 1, over several chunks: no decay is undone by a growth."""
    kept = -torch.tensor([40.0, 0.0]).expand(1, 1, 100, 2).cumsum(2).to(dtype)
    q, k = torch.randn(2, 1, 1, 100, 2, dtype=dtype).requires_grad_()
    found = wall_module.decayed_logits(q, k, kept)
    only_the_second = (q[..., 1:] @ k[..., 1:].mT).tril(-1)
    torch.testing.assert_close(found.tril(-1), only_the_second, rtol=1e-5, atol=1e-6)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(found.sum(), (q, k)))


def rove_value(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    return rotated(s.v[b, h, j], -s.distance(b, i, j), s.keys["base"], s.keys["pairing"])


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("choice", [{}, {"base": 3.0, "pairing": "half"}], ids=str)
def test_rove(choice: dict[str, Any], size: Size) -> None:
    agree("rove", choice, size, partial(attend, logit=rope, value=rove_value))


def tra(s: Sight) -> Tensor:
    """The keys that are seen, ranked from the query back."""

    def at(b: int, h: int, i: int) -> Tensor:
        here = s.key_of(i)
        seen = [j for j in reversed(range(here + 1)) if content(s, b, h, i, j) > 0]
        each = sigmoid(s.own["gate.weight"][h] @ s.x[b, here] + s.own["gate.bias"][h])
        shares = [content(s, b, h, i, j).exp() * each ** (n + 1) for n, j in enumerate(seen)]
        total, out = sum(shares), torch.zeros(s.width)
        for share, j in zip(shares, seen, strict=True):
            out = out + share / total * s.v[b, h, j]
        return out

    return every_query(s, at)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tra(size: Size) -> None:
    agree("tra", {}, size, tra)


def test_a_query_that_no_key_suits_attends_to_nothing() -> None:
    ours = first_layer("tra", {}, d_model=8, n_heads=2)
    k, v = torch.randn(2, 1, 2, 5, 4)
    q = -k[:, :, :1].expand(-1, -1, 5, -1).clone().requires_grad_()
    k[:, :, 1:] = k[:, :, :1]
    out = attend_by_hooks(ours, q, k, v, torch.randn(1, 5, 8), sequential(5))
    assert (out == 0).all()
    (gradient,) = torch.autograd.grad(out.sum(), q)
    assert gradient.isfinite().all()
