"""RoPE at positions from the input or on two axes, and its partial, clipped and learned forms."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from agreement import MAX_LEN, SIZES, Size, agree, attend_by_hooks, causal, first_layer
from formulas import sigmoid
from naive import Sight, attend, plain_value, turned
from torch import Tensor
from variants import SECTIONS, dims, scattered

from pe_lab.train.encodings import build_encodings


def repo_position(s: Sight, b: int, h: int, j: int) -> Tensor:
    gated = s.own["gate.weight"] @ s.x[b, j]
    hidden = gated * sigmoid(gated) * (s.own["content.weight"] @ s.x[b, j])
    return s.own["position.weight"][h] @ hidden


def repo(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    apart = repo_position(s, b, h, s.key_of(i)) - repo_position(s, b, h, j)
    angles = [apart * s.keys["base"] ** (-2 * m / s.width) for m in range(s.width // 2)]
    return turned(s, b, h, i, j, angles)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("choice", [{}, {"base": 10, "pairing": "half", "width": 3}], ids=str)
def test_repo(choice: dict[str, Any], size: Size) -> None:
    agree("repo", choice, size, partial(attend, logit=repo, value=plain_value))


@pytest.mark.parametrize(("layers", "lower"), [(16, 5), (32, 10), (2, 1), (1, 0)])
def test_the_lowest_layers_keep_rope(layers: int, lower: int) -> None:
    """5 of 16 and 10 of 32 layers, as in the published configurations."""
    made = build_encodings(SECTIONS["repo"], dims(n_layers=layers))
    assert [bool(e.reads_positions) for e in made] == [n < lower for n in range(layers)]
    rope = build_encodings(SECTIONS["rope"], dims(n_layers=1))[0]
    q, k, v = torch.randn(3, 1, 2, 7, 8).unbind(0)
    x, pos = torch.randn(1, 7, 16), scattered(1, 7, MAX_LEN)
    same = attend_by_hooks(made[0], q, k, v, x, pos), attend_by_hooks(rope, q, k, v, x, pos)
    assert torch.equal(*same) == (lower > 0)


def place(s: Sight, b: int, j: int) -> tuple[Tensor, Tensor]:
    """Row and column of key j."""
    if not s.keys["auto"]:
        return torch.zeros(()), s.pos[b, j].double()
    row, column = torch.zeros(()), torch.zeros(())
    for t in range(j):
        a, c = 2 * sigmoid(s.own["step.weight"] @ s.x[b, t] + s.own["step.bias"])
        row, column = row + 1 - a, a * column + c
    return row, column


def rope_2d(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    (row, column), (key_row, key_column) = place(s, b, s.key_of(i)), place(s, b, j)
    theta = [s.keys["base"] ** (-4 * m / s.width) for m in range(s.width // 4)]
    angles = [(row - key_row) * t for t in theta] + [(column - key_column) * t for t in theta]
    return turned(s, b, h, i, j, angles)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("choice", [{}, {"base": 10, "pairing": "half"}, {"auto": True}], ids=str)
def test_rope_2d(choice: dict[str, Any], size: Size) -> None:
    agree("rope_2d", choice, size, partial(attend, logit=rope_2d, value=plain_value), width=8)


def test_rows_and_columns_of_two_axes() -> None:
    """Half of the pairs rotate by the row, half by the column."""
    encoding = first_layer("rope_2d", {}, d_model=16, n_heads=2, n_layers=1)
    q, k, v = torch.randn(3, 2, 2, 6, 8).unbind(0)
    pos = torch.randint(0, 9, (2, 6, 2))
    got = attend_by_hooks(encoding, q, k, v, torch.randn(2, 6, 16), pos)
    angle = torch.cat([pos[..., n, None] * torch.tensor([1, 0.01]) for n in (0, 1)], -1)
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    rotated = [torch.view_as_complex(x.unflatten(-1, (4, 2))) * turn for x in (q, k)]
    expected = causal((rotated[0] @ rotated[1].mH).real / 8**0.5, v)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


LENGTH = 12


def theta(s: Sight, m: int) -> float | Tensor:
    """The frequency of pair m, by the definition of each method."""
    keys, pairs = s.keys, s.width // 2
    if keys["learned"]:
        return s.own["frequencies"][m]
    base, count = keys["base"], int(keys["fraction"] * pairs)
    if keys["drop"] is None:
        angles = [base ** (-m / count) if m < count else 0 for m in range(pairs)]
    else:
        left = range(count) if keys["drop"] == "low" else range(pairs - count, pairs)
        angles = [base ** (-m / pairs) if m in left else 0 for m in range(pairs)]
    slow = [m for m in range(pairs) if angles[m] and 2 * math.pi / angles[m] > LENGTH]
    if keys["clip"] and m in slow:
        nth = slow.index(m)
        share = math.pi * nth / (len(slow) - 1) if len(slow) > 1 else 0
        return angles[m] * (0 if keys["clip"] == "hard" else (1 + math.cos(share)) / 2)
    return angles[m]


def masked_rope(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    angles = [s.distance(b, i, j) * theta(s, m) for m in range(s.width // 2)]
    return turned(s, b, h, i, j, angles)


CHOICES: list[dict[str, Any]] = [
    {"fraction": 0.5},
    {"fraction": 0.7, "pairing": "half"},
    {"fraction": 0.5, "drop": "low"},
    {"fraction": 0.5, "drop": "high", "base": 50},
    {"clip": "hard", "base": 50},
    {"clip": "soft", "base": 50, "pairing": "half"},
    {"clip": "soft", "fraction": 0.8, "drop": "low"},
    {"learned": True, "base": 10},
]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_frequencies(choice: dict[str, Any], size: Size) -> None:
    logit = partial(attend, logit=masked_rope, value=plain_value)
    agree("rope", choice, size, logit, width=10, train_len=LENGTH)
