"""Sizes are counted before anything of that size is made."""

import pytest
from variants import SECTIONS, dims

from pe_lab.cli.train import checked_jobs
from pe_lab.training.encodings import build_encodings
from pe_lab.training.plan import plan
from pe_lab.training.sizes import encoding_numbers, largest_tables


@pytest.mark.parametrize("name", SECTIONS)
def test_the_numbers_of_an_encoding_are_counted_without_building_it(name: str) -> None:
    """Not one where it has some, and never more than there are."""
    counted = encoding_numbers(SECTIONS[name], dims())
    encodings = build_encodings(SECTIONS[name], dims())
    there = {id(t): t.numel() for e in encodings for t in (*e.parameters(), *e.buffers())}
    assert counted <= sum(there.values())
    assert counted > 0 or not there
    assert counted <= largest_tables(SECTIONS[name], dims())


def test_sequences_of_a_file_are_not_counted() -> None:
    """As many are read as it holds."""
    (config,) = checked_jobs(["task=text", "eval.sequences=1000000000000", "pe=none"])
    assert plan(config).sequences("in_domain", config.eval.sequences) == 10**12
