"""Fourier series of the position against loops, and its start against the published one."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from agreement import SIZES, Size, agree
from naive import Sight, attend, plain_value
from torch import Tensor
from variants import SECTIONS, dims

from pe_lab.pe.fope import start
from pe_lab.training.plan import build_encodings

LENGTH = 12


def multiplied(s: Sight, x: Tensor, h: int, position: int) -> Tensor:
    """x (D,), pair by pair times its Fourier series."""
    half, base = s.width // 2, s.keys["base"]
    kept = [base ** (-m / half) for m in range(half) if base ** (-m / half) >= 2 * math.pi / LENGTH]
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
def test_value_and_gradient(choice: dict[str, Any], size: Size) -> None:
    naive = partial(attend, logit=fope, value=plain_value)
    agree("fope", choice, size, naive, width=8, train_len=LENGTH)


@pytest.mark.parametrize(("kept", "mixed"), [(3, 3), (6, 4), (8, 4)])
def test_start_is_that_of_the_published_code(kept: int, mixed: int) -> None:
    """Noise around a 1 in each column, ceil(kept / mixed) rows further down in each."""
    matrices = start(200, kept, mixed)
    step = math.ceil(kept / mixed)
    expected = torch.zeros(kept, mixed)
    for column in range(mixed):
        if column * step < kept:
            expected[column * step, column] = 1
    deviation = 0.3 * math.sqrt(2 / (kept * mixed + 200 * mixed))
    assert (matrices.mean(0) - expected).abs().max() < deviation
    assert 0.8 < (matrices - expected).std() / deviation < 1.2


@pytest.mark.parametrize("normed", [False, True])
def test_columns_are_divided_by_their_sums_at_the_start_only(normed: bool) -> None:
    torch.manual_seed(0)
    encoding = build_encodings({**SECTIONS["fope"], "fourier_norm": normed}, dims(n_layers=1))[0]
    sums = encoding.get_parameter("cosine").sum(1)
    assert torch.allclose(sums, torch.ones_like(sums), atol=1e-6) == normed


def test_fixed_matrices_are_kept_with_the_weights() -> None:
    section = {**SECTIONS["fope"], "learned": False}
    first, other = (build_encodings(section, dims(n_layers=1))[0] for _ in range(2))
    assert not list(first.parameters())
    assert set(first.state_dict()) == {"cosine", "sine"}
    other.load_state_dict(first.state_dict())
    assert torch.equal(other.get_buffer("sine"), first.get_buffer("sine"))
