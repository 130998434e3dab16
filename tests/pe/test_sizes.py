"""Sizes are counted before anything of that size is made."""

import math

import pytest
from variants import SECTIONS, dims

from pe_lab.cli.train import checked_jobs
from pe_lab.common.errors import UsageError
from pe_lab.common.instantiate import normalize
from pe_lab.pe.base import PositionalEncoding
from pe_lab.training.memory import encoding_numbers, may_be_large
from pe_lab.training.plan import build_encodings, plan


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
    counted = encoding_numbers(section, dims(**sizes))
    assert may_be_large(section, dims(**sizes), counted)
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
