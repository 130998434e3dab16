"""Partial RoPE, p-RoPE, HoPE, Clipped RoPE and learned frequencies against loops and code by
others."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from agreement import SIZES, Size, agree
from naive import Sight, attend, plain_value, turned
from program import tiny
from torch import Tensor
from variants import SECTIONS, dims

from pe_lab.cli.train import checked_jobs
from pe_lab.common.errors import UsageError
from pe_lab.config.schema import plain
from pe_lab.evaluation.swap_encoding import EncodingConfigs, parse_encodings
from pe_lab.pe.rope import RoPE
from pe_lab.store.run_id import identity
from pe_lab.training.plan import build_encodings

LENGTH = 12
NEW = ("fraction", "drop", "clip", "learned")


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
def test_value_and_gradient(choice: dict[str, Any], size: Size) -> None:
    logit = partial(attend, logit=masked_rope, value=plain_value)
    agree("rope", choice, size, logit, width=10, train_len=LENGTH)


def rotation_of(train_len: int = 16, width: int = 16, **changes: Any) -> Tensor:
    section = {**SECTIONS["rope"], **changes}
    (rope,) = build_encodings(
        section, dims(d_model=width, n_heads=1, n_layers=1, train_len=train_len)
    )
    assert isinstance(rope, RoPE)
    return rope.frequencies


def test_plain_rope_is_as_it_was() -> None:
    expected = 10000 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    assert torch.equal(rotation_of(), expected)


def test_runs_of_rope_made_before_keep_their_identity() -> None:
    (config,) = checked_jobs(tiny("pe=rope"))
    (partial_rope,) = checked_jobs(tiny("pe=rope", "pe.fraction=0.5"))
    now = plain(config)
    before = {**now, "pe": {k: v for k, v in now["pe"].items() if k not in NEW}}
    assert len(now["pe"]) == len(before["pe"]) + 4
    assert identity(now) == identity(before) != identity(plain(partial_rope))


def test_partial_rope_as_x_transformers() -> None:
    """Its ``rotary_emb_dim``: the frequencies of as many features as rotate."""
    peer = pytest.importorskip("x_transformers.x_transformers")
    theirs = peer.RotaryEmbedding(8).inv_freq.double()
    ours = rotation_of(fraction=0.5)
    torch.testing.assert_close(ours[:4], theirs, rtol=1e-6, atol=0)
    assert not ours[4:].any()


def test_clipped_rope_as_published() -> None:
    """Its code: linspace(0, pi, n) over the n last pairs."""
    whole, n = rotation_of(width=32, train_len=128), 10
    assert int((whole < 2 * math.pi / 128).sum()) == n
    window = torch.cat((torch.ones(6), (1 + torch.linspace(0, math.pi, n).cos()) / 2))
    clipped = rotation_of(width=32, train_len=128, clip="soft")
    torch.testing.assert_close(clipped, whole * window, rtol=1e-12, atol=0)
    hard = rotation_of(width=32, train_len=128, clip="hard")
    assert torch.equal(hard, torch.cat((whole[:6], torch.zeros(n))))


def test_a_change_at_test_time_does_not_lose_a_key() -> None:
    """``pi`` has no ``fraction``: it would rotate pairs that were trained without a position."""
    (whole,), (partial_rope,) = (
        checked_jobs(tiny("pe=rope", f"pe.fraction={share}")) for share in (1, 0.5)
    )
    (spec,) = parse_encodings("pi")
    assert EncodingConfigs().swap(whole, spec).names["pe"] == "pi"
    with pytest.raises(UsageError, match=r"trained with fraction=0.5, which pe=pi does not have"):
        EncodingConfigs().swap(partial_rope, spec)
    (again,) = parse_encodings("rope:base=500")
    assert EncodingConfigs().swap(partial_rope, again).pe["fraction"] == 0.5
