"""Sizes that cannot work, and departures from published code."""

from typing import Any

import pytest
import torch
from agreement import first_layer
from variants import SECTIONS, assert_refused, dims

from pe_lab.check import base
from pe_lab.pe.base import PositionalEncoding
from pe_lab.train.encodings import build_encodings


def tables(encodings: list[PositionalEncoding]) -> int:
    """How many tables of distances they have."""
    found = [p for e in encodings for n, p in e.named_parameters() if n.endswith("table")]
    return len({id(p) for p in found if len(p) == dims().max_len})


def test_a_table_of_distances_for_each_layer_or_for_the_model() -> None:
    """cope with combine=relative has one for each layer, the published code one for the model, as
    the combination of both encodings has."""
    alone = build_encodings({**SECTIONS["cope"], "combine": "relative"}, dims())
    parts = base.parts({"pe": "cope", "every": 2}, "relative")
    together = build_encodings({**SECTIONS["combined"], "parts": parts}, dims())
    assert (tables(alone), tables(together)) == (3, 1)


@pytest.mark.parametrize(("window", "group"), [(3, 5), (7, 2), (6, 3)])
def test_self_extend_shifts_by_the_rounded_or_the_exact_number(window: int, group: int) -> None:
    """W - floor(W / G), or W - W / G as the authors' code; equal where G divides W."""
    keys = {"window": window, "group": group}
    pos = torch.arange(20)[None]
    factors = {}
    for shift, by in (("floored", window // group), ("exact", window / group)):
        encoding = first_layer("self_extend", {**keys, "shift": shift})
        factors[shift], _ = encoding.far_factors(pos, pos)
        angle = (pos[0, 7] // group).double() + window - by
        angles = angle * encoding.frequencies
        expected = torch.polar(torch.ones_like(angles), angles)
        torch.testing.assert_close(factors[shift][0, 0, 7], expected)
    assert torch.equal(factors["floored"], factors["exact"]) == (window % group == 0)


@pytest.mark.parametrize(
    ("name", "changes", "sizes", "words"),
    [
        ("rope", {}, {"d_model": 6}, ["d_model=6", "n_heads=2", "width 3", "even"]),
        ("rope_2d", {}, {"d_model": 12}, ["width 6"]),
        ("rope", {"logn": "train"}, {"train_len": 1}, ["logn=train", "1 token"]),
        ("rope", {"fraction": 0.1}, {}, ["fraction=0.1 of 4 pairs leaves none", "0.25"]),
        ("rope", {"clip": "hard"}, {"train_len": 6}, ["clip=hard leaves no pair", "length of 6"]),
        ("rope", {"learned": True, "clip": "soft"}, {}, ["learned=true would move"]),
        ("pi", {"k": 0.5}, {}, ["pe.k=0.5"]),
        ("ntk_old", {}, {"d_model": 4}, ["width 2"]),
        ("yarn", {"slow": 32}, {}, ["fast=32", "slow=32"]),
        ("longrope", {"long": [2, 3]}, {}, ["long has 2 numbers", "4 pairs"]),
        ("self_extend", {"window": 12}, {}, ["window=12", "length is 12"]),
        ("hfwa", {}, {"n_layers": 1}, ["n_layers=1"]),
        ("t5", {"max_distance": 16}, {}, ["max_distance=16"]),
        ("cope", {"every": 4}, {}, ["every=4", "none of 3 layers"]),
        ("shaw", {"values": 7}, {}, ["pe.values=7"]),
    ],
    ids=str,
)
def test_refused(
    name: str, changes: dict[str, Any], sizes: dict[str, int], words: list[str]
) -> None:
    assert_refused(name, changes, words, **sizes)
