"""Biases on the logits, windows of heads and DAPE, against formulas in loops and others' code."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from agreement import SIZES, TRAIN_LEN, Size, agree, first_layer
from naive import SLOPES, Sight, attend, content, every_query, plain_value, softplus, t5_bucket
from torch import Tensor
from variants import SECTIONS

from pe_lab.pe.dape import BASES


def kerple_bias(s: Sight, b: int, h: int, i: int, j: int, of: str = "") -> Tensor:
    n, raw = s.distance(b, i, j), s.own[f"{of}raw_r2"][h]
    if s.keys.get("form") == "power":
        term = n ** (2 / (1 + (-raw).exp()))
    else:
        term = (1 + softplus(raw) * n).log()
    return -softplus(s.own[f"{of}raw_r1"][h]) * term


def kerple(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    return content(s, b, h, i, j) + kerple_bias(s, b, h, i, j)


def sandwich(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    n, dim = s.distance(b, i, j), s.keys["dim"]
    total = sum(math.cos(n / 10000 ** (2 * m / dim)) for m in range(dim // 2))
    return content(s, b, h, i, j) + total / (8 * (h + 1) / s.n_heads)


def fire_bias(s: Sight, b: int, h: int, i: int, j: int, of: str = "") -> Tensor:
    def psi(n: Tensor | int) -> Tensor:
        return (1 + s.own[f"{of}c"].abs() * n).log()

    least = (s.keys.get("threshold", 0.25) * TRAIN_LEN * s.own[f"{of}threshold_factor"]).abs()
    at = int(s.pos[b, s.key_of(i)])
    whole = psi(at) if at > least else psi(least)
    y = psi(s.distance(b, i, j)) / (whole + 1e-6)
    hidden = s.own[f"{of}hidden.weight"][:, 0] * y + s.own[f"{of}hidden.bias"]
    return s.own[f"{of}out.weight"][h] @ hidden.clamp(min=0)


def fire(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    return content(s, b, h, i, j) + fire_bias(s, b, h, i, j)


def tupe(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    def projected(position: int, name: str) -> Tensor:
        row = s.own["table"][position]
        row = row - row.mean()
        row = row / (row.square().mean() + 1e-5).sqrt() * s.own["norm.weight"] + s.own["norm.bias"]
        heads = slice(h * s.width, (h + 1) * s.width)
        out = s.own[f"{name}.weight"][heads] @ row
        return out + s.own[f"{name}.bias"][heads] if name == "query" else out

    at_q, at_k = int(s.pos[b, s.key_of(i)]), int(s.pos[b, j])
    both = s.q[b, h, i] @ s.k[b, h, j] + projected(at_q, "query") @ projected(at_k, "key")
    logit = both / math.sqrt(2 * s.width)
    if s.keys["relative"]:
        logit = logit + s.own["relative.table"][t5_bucket(s.distance(b, i, j), 32, 128), h]
    return logit


CASES: list[tuple[str, dict[str, Any]]] = [
    ("kerple", {}),
    ("kerple", {"form": "power"}),
    ("sandwich", {}),
    ("sandwich", {"dim": 6}),
    ("fire", {}),
    ("fire", {"hidden": 3, "c": 2, "threshold": 1.5}),
    ("tupe", {}),
    ("tupe", {"relative": True}),
]
LOGITS = {"kerple": kerple, "sandwich": sandwich, "fire": fire, "tupe": tupe}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("name", "choice"), CASES, ids=str)
def test_value_and_gradient(name: str, choice: dict[str, Any], size: Size) -> None:
    agree(name, choice, size, partial(attend, logit=LOGITS[name], value=plain_value))


@pytest.mark.parametrize(
    ("buckets", "most"), [(2, 2), (5, 9), (32, 17), (32, 128), (33, 4096), (100, 60)]
)
def test_t5_has_the_bucket_of_every_distance(buckets: int, most: int) -> None:
    encoding = first_layer("t5", {"buckets": buckets, "max_distance": most})
    far = torch.arange(2 * most + 3)
    bias = encoding.bias(far[-1:][None], far[-1] - far[None])
    rows = [t5_bucket(n, buckets, most) for n in far.tolist()]
    assert torch.equal(bias[0, :, 0], encoding.table[rows].T)  # type: ignore[index]


def windowed(s: Sight) -> Tensor:
    """Softmax over the keys in the window alone."""
    heads = s.keys["heads"] or max(1, s.n_heads // 2)

    def at(b: int, h: int, i: int) -> Tensor:
        near = [j for j in range(s.key_of(i) + 1) if h >= heads or s.distance(b, i, j) < h + 1]
        exps = [content(s, b, h, i, j).exp() for j in near]
        return sum(e / sum(exps) * s.v[b, h, j] for e, j in zip(exps, near, strict=True))

    return every_query(s, at)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("choice", [{}, {"heads": 1}, {"heads": 2}], ids=str)
def test_hard_alibi(choice: dict[str, Any], size: Size) -> None:
    if choice.get("heads", 1) <= size[3]:
        agree("hard_alibi", choice, size, windowed)


def static_bias(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    if s.keys["base"] == "alibi":
        return torch.tensor(-SLOPES[s.n_heads][h] * s.distance(b, i, j), dtype=s.q.dtype)
    return (kerple_bias if s.keys["base"] == "kerple" else fire_bias)(s, b, h, i, j, "base.")


def dape(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    everyone = range(s.n_heads)
    a = [content(s, b, other, i, j) for other in everyone]
    bias = [static_bias(s, b, other, i, j) for other in everyone]
    total = a[h] + bias[h]
    for unit in range(s.keys["width"]):
        weight = s.own["hidden.weight"][unit]
        hidden = s.own["hidden.bias"][unit]
        for place, value in enumerate(a + bias):
            hidden = hidden + weight[place] * value
        slope = 1 if hidden > 0 else 0.01
        total = total + s.own["out.weight"][h, unit] * slope * hidden
    return total


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("base", BASES)
def test_dape(base: str, size: Size) -> None:
    choice = {"base": base, "width": 5}
    agree("dape", choice, size, partial(attend, logit=dape, value=plain_value))


@pytest.mark.parametrize("base", BASES)
def test_a_base_is_the_encoding_of_that_name(base: str) -> None:
    made, keys = BASES[base]
    section = dict(SECTIONS[base])
    assert section.pop("_target_") == f"{made.__module__}.{made.__qualname__}"
    assert section == keys
