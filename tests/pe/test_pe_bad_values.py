"""A value that an encoding cannot take is refused in one sentence."""

from typing import Any

import pytest
from variants import assert_refused


@pytest.mark.parametrize(
    ("name", "changes", "sizes", "words"),
    [
        ("rope", {}, {"d_model": 6}, ["d_model=6", "n_heads=2", "width 3", "even"]),
        ("cope", {"combine": "rope"}, {"d_model": 6}, ["width 3", "even"]),
        ("rope", {"base": 0}, {}, ["pe.base=0", "greater than 0"]),
        ("rope", {"pairing": "halves"}, {}, ["pe.pairing=halves", "half"]),
        ("sinusoidal", {"base": -1}, {}, ["pe.base=-1", "greater than 0"]),
        ("learned", {"max_len": 0}, {}, ["pe.max_len=0", "greater than 0"]),
        ("relative", {"max_len": -3}, {}, ["pe.max_len=-3", "greater than 0"]),
        ("shaw", {"clip": 0}, {}, ["pe.clip=0", "greater than 0"]),
        ("shaw", {"values": 7}, {}, ["pe.values=7", "true or false"]),
        ("t5", {"buckets": 1}, {}, ["buckets=1", "2 or more"]),
        ("t5", {"max_distance": 16}, {}, ["max_distance=16", "16", "raise max_distance"]),
        ("alibi", {"learned": "maybe"}, {}, ["pe.learned=maybe", "true or false"]),
        ("cope", {"npos": 0}, {}, ["pe.npos=0", "greater than 0"]),
        ("cope", {"npos": 2.5}, {}, ["pe.npos=2.5", "whole number"]),
        ("cope", {"gates": "queries"}, {}, ["pe.gates=queries", "sep_keys"]),
        ("fire", {"share_layers": True}, {"n_layers": 1}, ["share_layers=true", "n_layers=1"]),
        ("cope", {"every": 4}, {}, ["every=4", "none of 3 layers", "3 or less"]),
        *(
            (
                "cope",
                {"share_layers": True, **keys},
                sizes,
                ["share_layers=true has no effect", word],
            )
            for keys, sizes, word in (
                ({}, {"n_layers": 1}, "n_layers=1"),
                ({"every": 2}, {}, "a single layer"),
                ({"every": 3, "gates": "sep_keys"}, {}, "a single layer"),
                ({"combine": "alibi_slope"}, {}, "gates=keys, which have no parameters"),
                ({"combine": "alibi_slope", "gates": "values"}, {}, "gates=values"),
            )
        ),
        (
            "cope",
            {"every": 2, "share_layers": True, "combine": "relative"},
            {},
            ["share_layers=true", "every=2", "combine=relative"],
        ),
        (
            "cope",
            {"position": "mlp", "combine": "alibi_slope"},
            {},
            ["position=mlp", "combine=alibi_slope", "position=table"],
        ),
    ],
)
def test_refused(
    name: str, changes: dict[str, Any], sizes: dict[str, int], words: list[str]
) -> None:
    assert_refused(name, changes, words, **sizes)
