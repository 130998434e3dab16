"""A day of mixed use: what ``results`` shows of it."""

from pathlib import Path

import pytest
from day_of_use import shared_day

from pe_lab.results.frame import read_runs


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_day(tmp_path_factory)


def test_the_fixture_is_a_day_of_mixed_runs(day: Path) -> None:
    runs = read_runs(day)
    assert (len(runs), runs["setting"].n_unique(), runs["task"].n_unique()) == (64, 35, 3)
    states = dict(runs["state"].value_counts().rows())
    assert states == {"finished": 61, "failed": 1, "interrupted": 1, "killed": 1}
    assert len(list(day.glob("*/*/*/evaluations.jsonl"))) == 12
