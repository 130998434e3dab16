"""``seed.init`` draws the weights, ``seed.data`` all else, ``seed`` both."""

from pathlib import Path
from typing import Any

import pytest
import torch
import trainers
from program import Here, assert_refused, succeeded, summary, tiny
from sweeps import folders

from pe_lab.config.schema import plain, validated
from pe_lab.experiment.load_run import load
from pe_lab.experiment.run import folder_of
from pe_lab.results.frame import read_runs
from pe_lab.results.labels import labels
from pe_lab.store.run_id import identity
from pe_lab.training.batches import TrainData
from pe_lab.training.plan import Plan

PLAIN = "seed3-633ea752"
"""Of a run before ``seed.init`` and ``seed.data`` existed."""


def planned(*words: str) -> Plan:
    return trainers.planned("pe=rope", *words)


def weights(of: Plan) -> dict[str, torch.Tensor]:
    return of.model().state_dict()


def batches(of: Plan) -> list[Any]:
    data = TrainData(of.task, of.config.seed, of.config.train.batch_size)
    return [data.batch(number).tokens for number in (0, 17)]


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[key], b[key]) for key in a)


def test_an_init_alone_changes_the_weights_and_no_batch() -> None:
    one, other = planned("seed=3"), planned("seed=3", "seed.init=4")
    assert not equal(weights(one), weights(other))
    assert all((a == b).all() for a, b in zip(batches(one), batches(other), strict=True))
    assert equal(weights(other), weights(planned("seed=4")))


def test_data_alone_changes_the_batches_and_no_weight() -> None:
    one, other = planned("seed=3"), planned("seed=3", "seed.data=4")
    assert equal(weights(one), weights(other))
    assert any((a != b).any() for a, b in zip(batches(one), batches(other), strict=True))


def test_both_words_are_the_number_where_they_agree() -> None:
    one, both = planned("seed=3"), planned("seed.init=3", "seed.data=3")
    assert plain(both.resolved)["seed"] == 3
    assert folder_of(one).path == folder_of(both).path


def test_the_identity_of_a_plain_seed_is_what_it_was() -> None:
    assert folder_of(planned("seed=3")).path.name == PLAIN


def test_two_seeds_are_recorded_as_such() -> None:
    apart = planned("seed.init=1", "seed.data=2")
    config = plain(apart.resolved)
    assert config["seed"] == {"init": 1, "data": 2}
    assert folder_of(apart).path.name == f"seed2-{identity(config)}"
    again = validated(config)
    assert (again.seed, again.seed_init) == (2, 1)


def test_a_mapping_is_the_same_as_two_words() -> None:
    mapping, words = planned("seed={init: 1, data: 2}"), planned("seed.init=1", "seed.data=2")
    assert folder_of(mapping).path == folder_of(words).path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=1", "seed.init=2", "seed.data=3"], "seed=1 has no effect with seed.init and"),
        (["seed.init=-1"], "seed.init=-1 is not allowed: "),
        (["seed.init=true"], "seed.init=true is not allowed: "),
        (["seed.init=abc"], "seed.init=abc is not allowed: "),
        (["seed={init: 1}"], "seed.data is missing: "),
        (["seed={init: 1, date: 2}"], "seed.date is not a key: did you mean data?"),
    ],
)
def test_wrong_seeds(here: Here, words: list[str], message: str) -> None:
    assert_refused(here(*tiny(*words)), message)


def test_runs_of_one_init_are_a_setting(here: Here, tmp_path: Path) -> None:
    words = tiny("-m", "seed.init=0,7", "seed.data=0,1", "train.steps=2")
    ended = succeeded(here(*words))
    assert "seed.init" in ended.out
    found = {summary(path)["identity"]: summary(path) for path in folders(tmp_path).values()}
    assert len(found) == 4
    assert sorted(one["seed"] for one in found.values()) == [0, 0, 1, 1]
    runs = read_runs(tmp_path / "runs")
    # A plain seed 0, the same init with other data, and another init with both.
    assert sorted(runs.group_by("setting").len()["len"]) == [1, 1, 2]
    assert set(labels(runs).values()) == {"", "seed.init=0", "seed.init=7"}
    assert here("results", "seed.init=7").status == 0
    loaded = [load(path).plan.config for path in folders(tmp_path).values()]
    seeds = [(config.seed_init, config.seed) for config in loaded]
    assert sorted(seeds, key=str) == [(0, 1), (7, 0), (7, 1), (None, 0)]
    again = here(*words)
    assert "4 of them finished before" in again.out
