"""DAPE against its formula in loops."""

from functools import partial

import pytest
import torch
from agreement import SIZES, TRAIN_LEN, Size, agree
from naive import SLOPES, Sight, attend, content, plain_value, softplus
from torch import Tensor
from variants import SECTIONS, dims

from pe_lab.pe.dape import BASES, DAPE
from pe_lab.training.plan import build_encodings


def static_bias(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    n = s.distance(b, i, j)
    if s.keys["base"] == "alibi":
        return torch.tensor(-SLOPES[s.n_heads][h] * n, dtype=s.q.dtype)
    if s.keys["base"] == "kerple":
        r1, r2 = (softplus(s.own[f"base.raw_r{part}"][h]) for part in (1, 2))
        return -r1 * (1 + r2 * n).log()
    c, start = s.own["base.c"].abs(), int(s.pos[b, s.key_of(i)])
    threshold = (0.25 * TRAIN_LEN * s.own["base.threshold_factor"]).abs()
    whole = start if start > threshold else threshold
    share = (c * n + 1).log() / ((c * whole + 1).log() + 1e-6)
    unit = s.own["base.hidden.weight"][:, 0] * share + s.own["base.hidden.bias"]
    return s.own["base.out.weight"][h] @ unit.clamp(min=0)


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


@pytest.mark.parametrize("base", BASES)
def test_layers_share_what_the_base_shares(base: str) -> None:
    layers = build_encodings({**SECTIONS["dape"], "base": base}, dims())
    assert all(isinstance(layer, DAPE) for layer in layers)
    bases = {id(layer.base) for layer in layers}
    assert len(bases) == (1 if SECTIONS[base].get("share_layers") else len(layers))
    assert len({id(layer.hidden) for layer in layers}) == len(layers)
