"""Sizes counted before anything is made, values refused, and departures from published code."""

import math
from typing import Any

import pytest
import torch
from agreement import first_layer
from variants import SECTIONS, assert_refused, dims

from pe_lab.check import base
from pe_lab.cli.train import checked_jobs
from pe_lab.core.errors import UsageError
from pe_lab.core.instantiate import normalize
from pe_lab.pe.base import PositionalEncoding
from pe_lab.train.encodings import build_encodings
from pe_lab.train.memory import encoding_numbers, may_be_large
from pe_lab.train.plan import plan


@pytest.mark.parametrize("name", SECTIONS)
def test_the_numbers_of_an_encoding_are_counted_without_building_it(name: str) -> None:
    """Not one where it has some, and never more than there are."""
    counted = encoding_numbers(SECTIONS[name], dims())
    encodings = build_encodings(SECTIONS[name], dims())
    there = {id(t): t.numel() for e in encodings for t in (*e.parameters(), *e.buffers())}
    assert counted <= sum(there.values())
    assert counted > 0 or not there


@pytest.mark.parametrize(
    "sizes",
    [{}, {"d_model": 4096}, {"head_width": 4096, "n_heads": 1}, {"max_len": 8192, "train_len": 99}],
    ids=["small", "wide", "wide heads", "long"],
)
@pytest.mark.parametrize("name", SECTIONS)
def test_what_may_be_large_is_counted(name: str, sizes: dict[str, int]) -> None:
    # As in a run: a base such as 10000 is no integer there.
    section = normalize(SECTIONS[name], "pe", PositionalEncoding, leading=1)
    assert may_be_large(section, dims(**sizes), encoding_numbers(section, dims(**sizes)))
    assert not may_be_large(section, dims(**sizes), 1e11)


def test_encodings_of_ones_own_are_always_counted() -> None:
    own = {"_target_": "own.Table"}
    assert may_be_large(own, dims(), math.inf)
    assert may_be_large({"_target_": "pe_lab.pe.combined.Combined", "parts": [own]}, dims(), 1e30)


def test_sequences_of_a_file_are_not_counted() -> None:
    """As many are read as it holds."""
    (config,) = checked_jobs(["task=text", "eval.sequences=1000000000000", "pe=none"])
    assert plan(config).sequences("in_domain", config.eval.sequences) == 10**12


def test_tables_of_wide_heads_are_refused() -> None:
    words = ["task=flipflop", "model=gau", "model.head_width=1000000", "pe=cope", "pe.npos=3000"]
    with pytest.raises(UsageError, match=r"pe=cope, pe.npos=3000: .* numbers in tables is too l"):
        checked_jobs(words)


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
        ("t5", {"max_distance": 2**62}, {}, ["pe.max_distance=4611686018427387904", "less than"]),
        ("kerple", {"form": "exp"}, {}, ["pe.form=exp", "power"]),
        ("kerple", {"share_layers": 3}, {}, ["pe.share_layers=3", "true or false"]),
        ("sandwich", {"dim": 7}, {}, ["dim=7", "odd", "even"]),
        ("sandwich", {"dim": 0}, {}, ["pe.dim=0", "greater than 0"]),
        ("fire", {"c": 0}, {}, ["pe.c=0", "greater than 0"]),
        ("fire", {"c": 1e-300}, {}, ["c=1e-300", "0 in float32", "1.18e-38"]),
        ("fire", {"c": 1e38}, {}, ["c=1e+38", "threshold=0.25", "not finite", "lower them"]),
        ("fire", {"threshold": 1e300}, {}, ["c=0.1", "threshold=1e+300", "not finite"]),
        ("fire", {"threshold": -1}, {}, ["pe.threshold=-1", "greater than 0"]),
        ("fire", {"hidden": 2.5}, {}, ["pe.hidden=2.5", "whole number"]),
        ("tupe", {"max_len": 0}, {}, ["pe.max_len=0", "greater than 0"]),
        ("tupe", {"relative": "t5"}, {}, ["pe.relative=t5", "true or false"]),
        ("dape", {"base": "t5"}, {}, ["pe.base=t5", "alibi", "kerple", "fire"]),
        ("dape", {"width": 0}, {}, ["pe.width=0", "greater than 0"]),
        ("dape", {"width": None}, {}, ["pe.width", "whole number"]),
        ("stick_breaking", {"remainder": "first"}, {}, ["pe.remainder=first", "self"]),
        ("transformer_xl", {"base": 0}, {}, ["pe.base=0", "greater than 0"]),
        ("transformer_xl", {"share_biases": 3}, {}, ["pe.share_biases=3", "true or false"]),
        ("deberta", {"clip": 0}, {}, ["pe.clip=0", "greater than 0"]),
        ("deberta", {"mirrored": "no way"}, {}, ["pe.mirrored=no way", "true or false"]),
        ("deberta", {"absolute_layers": -1}, {}, ["pe.absolute_layers=-1", "0"]),
        ("deberta", {"absolute_layers": 4}, {}, ["absolute_layers=4", "3 layers", "3 or less"]),
        ("deberta", {"max_len": 0}, {}, ["pe.max_len=0", "greater than 0"]),
        (
            "deberta",
            {"absolute_layers": 0, "max_len": 9},
            {},
            ["max_len=9", "absolute_layers=0", "max_len=null"],
        ),
        ("fope", {}, {"train_len": 6}, ["trained length of 6", "7 tokens or more"]),
        ("hard_alibi", {"heads": 3}, {}, ["heads=3", "the 2 heads of layer 0", "to 2 or less"]),
        ("normalized", {"scale": "length"}, {}, ["pe.scale=length", "sequence"]),
        ("normalized", {"max_len": 0}, {}, ["pe.max_len=0", "greater than 0"]),
        (
            "normalized",
            {"scale": "sequence", "max_len": 8},
            {},
            ["max_len=8", "scale=sequence", "max_len=null"],
        ),
        ("binary", {"bits": 0}, {}, ["pe.bits=0", "1"]),
        ("binary", {"bits": 63}, {}, ["pe.bits=63", "62"]),
        ("hierarchical", {"rows": 0}, {}, ["pe.rows=0", "greater than 0"]),
        ("hierarchical", {"a": 0.5}, {}, ["a=0.5", "another value", "0.4"]),
        ("hierarchical", {"a": 1}, {}, ["pe.a=1", "less than 1"]),
        ("hierarchical", {"a": 0}, {}, ["pe.a=0", "greater than 0"]),
        ("floater", {"blocks": "last"}, {}, ["pe.blocks=last", "first"]),
        ("floater", {"delta": 0}, {}, ["pe.delta=0", "greater than 0"]),
        ("floater", {"delta": 1.5}, {}, ["pe.delta=1.5", "1"]),
        ("floater", {"steps": 0}, {}, ["pe.steps=0", "greater than 0"]),
        ("multiplicative", {"max_len": 0}, {}, ["pe.max_len=0", "greater than 0"]),
        ("complex_order", {}, {"d_model": 15, "n_heads": 3}, ["d_model=15", "odd", "even number"]),
        ("complex_order", {"base": 0}, {}, ["pe.base=0", "greater than 0"]),
        ("complex_order", {"phase": "one"}, {}, ["pe.phase=one", "zero"]),
        ("conv", {"kernel": 1}, {}, ["pe.kernel=1", "2"]),
        ("conv", {"kernel": 49}, {}, ["kernel=49", "48 positions", "set kernel to 48 or less"]),
        ("path", {"rank": 0}, {}, ["pe.rank=0", "greater than 0"]),
        ("path", {"conv": 0}, {}, ["pe.conv=0", "greater than 0"]),
        ("path", {"conv": 49}, {}, ["conv=49", "48 positions", "set conv to 48 or less"]),
        ("path", {"conv": None}, {}, ["pe.conv", "whole number"]),
        ("path", {"silu": "gelu"}, {}, ["pe.silu=gelu", "true or false"]),
        ("path", {"forget": 2}, {}, ["pe.forget=2", "true or false"]),
        ("rope_2d", {}, {"d_model": 12}, ["width 6", "choose a width that 4 divides"]),
        ("rope", {"logn_clip": False}, {}, ["logn_clip=false", "logn=none", "set logn=train"]),
        ("pi", {"logn_clip": True}, {}, ["logn_clip=true", "logn=none", "logn_clip=null"]),
        ("rope", {"logn": "train"}, {"train_len": 1}, ["logn=train", "1 token", "logn=none"]),
        ("rope", {"logn": "always"}, {}, ["pe.logn=always", "test"]),
        ("pi", {"k": 0.5}, {}, ["pe.k=0.5", "at least 1"]),
        ("pi", {}, {"d_model": 6}, ["width 3", "even"]),
        ("ntk_old", {"variant": 9603}, {}, ["pe.variant=9603", "9675", "9706"]),
        ("ntk_old", {}, {"d_model": 4}, ["width 2", "pe=pi"]),
        ("ntk_old", {"variant": 9706}, {"d_model": 4}, ["width 2", "pe=pi"]),
        ("dynamic_ntk", {}, {"d_model": 4}, ["width 2", "pe=pi"]),
        ("dynamic_ntk", {"k": 2, "factor": 4}, {}, ["factor=4", "k=2", "leave"]),
        ("ntk_mixed", {"b": 0}, {}, ["pe.b=0", "greater than 0"]),
        ("yarn", {"slow": 32}, {}, ["fast=32", "slow=32", "more rotations"]),
        ("yarn", {"ramp": "pairs", "base": 1}, {}, ["base=1", "ramp=rotations"]),
        ("longrope", {"long": [2, 3]}, {}, ["long has 2 numbers", "4 pairs", "long=null"]),
        ("longrope", {"short": [0]}, {}, ["pe.short.0=0", "greater than 0"]),
        ("longrope", {}, {"train_len": 1}, ["attention_factor=null", "attention_factor=1"]),
        ("rerope", {"window": 0}, {}, ["pe.window=0", "greater than 0"]),
        ("leaky_rerope", {"k": 0}, {}, ["pe.k=0", "at least 1"]),
        ("self_extend", {"group": 1.5}, {}, ["pe.group=1.5", "whole number"]),
        ("self_extend", {"window": 12}, {}, ["window=12", "length is 12", "group"]),
        ("hfwa", {}, {"n_layers": 1}, ["n_layers=1", "2 or more"]),
        ("hfwa", {"window": 1}, {}, ["pe.window=1", "at least 2"]),
        ("rope", {"drop": "low"}, {}, ["drop=low has no effect with fraction=1"]),
        ("rope", {"fraction": 0.1}, {}, ["fraction=0.1 of 4 pairs leaves none", "0.25 or more"]),
        (
            "rope",
            {"fraction": 0.5, "drop": "low", "base": 1},
            {},
            ["base=1 rotates no pair more slowly"],
        ),
        (
            "rope",
            {"clip": "soft", "base": 1.5},
            {},
            ["clip=soft has no effect", "trained length of 12"],
        ),
        (
            "rope",
            {"learned": True, "clip": "soft"},
            {},
            ["learned=true would move the frequencies"],
        ),
        ("rope", {"fraction": 0}, {}, ["fraction=0"]),
        ("rope", {"clip": "hard"}, {"train_len": 6}, ["clip=hard leaves no pair", "length of 6"]),
        ("xpos", {}, {"d_model": 6}, ["width 3", "even"]),
        ("xpos", {"gamma": 0}, {}, ["pe.gamma=0", "at least 1e-09"]),
        ("xpos", {"scale_base": -1}, {}, ["pe.scale_base=-1", "greater than 0"]),
        ("selective_rope", {}, {"d_model": 6}, ["width 3", "even"]),
        ("selective_rope", {"rank": 0}, {}, ["pe.rank=0", "greater than 0"]),
        (
            "selective_rope",
            {"kernel": 49},
            {},
            ["kernel=49", "48 positions", "set kernel to 48 or less"],
        ),
        ("selective_rope", {"kernel": 1.5}, {}, ["pe.kernel=1.5", "whole number"]),
        ("selective_rope", {"gate": "low-rank"}, {}, ["pe.gate=low-rank", "true or false"]),
        ("tape", {}, {"d_model": 6}, ["d_model=6", "n_heads=2", "width 3", "even"]),
        ("tape", {"base": 0}, {}, ["pe.base=0", "greater than 0"]),
        ("tape", {"width": 0}, {}, ["pe.width=0", "greater than 0"]),
        ("tape", {"width": 1.5}, {}, ["pe.width=1.5", "whole number"]),
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
    ids=str,
)
def test_refused(
    name: str, changes: dict[str, Any], sizes: dict[str, int], words: list[str]
) -> None:
    assert_refused(name, changes, words, **sizes)
