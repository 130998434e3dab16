"""Which rate tuning chooses, which result of a run counts, and what is counted."""

import math
from functools import partial
from statistics import fmean

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from suite_rows import SPLITS, SUITE, rows, run, tuned

from docs import leaderboard
from pe_lab.suite import tables
from pe_lab.suite.scores import (
    FAILED,
    RANKED,
    choose_rate,
    choose_smallest_rate,
    compare_with_text,
    next_tuning,
    score,
    unite,
)
from pe_lab.suite.suite import load_suite
from pe_lab.suite.tables import describe_text

PROTOCOL = SUITE.protocol
NONE = rows()
SHIPPED = leaderboard.shipped("v2")


def test_the_rate_with_the_lowest_error_then_loss_is_chosen() -> None:
    a, b = {1000: (0.0, 0.5), 1001: (0.2, 0.5)}, {1000: (0.1, 0.1), 1001: (0.1, 0.1)}
    assert choose_rate({0.001: a, 0.003: b}) == 0.003
    assert choose_rate({0.001: a, 0.003: {1000: (0.0, 0.0)}}) == 0.001, "fewer seeds"
    assert choose_rate({0.001: b, 0.003: b}) == 0.001, "the smaller rate"
    assert choose_rate({0.001: {1000: FAILED}}) is None
    assert choose_rate({}) is None


@pytest.mark.parametrize(
    ("errors", "chosen"),
    [
        # rate: errors of the tuning seeds. A rate fits up to 0.01, noise is 0.002.
        ({0.001: [0.002, 0.002], 0.003: [0.0, 0.001], 0.006: [0.0, 0.0]}, 0.001),
        ({0.001: [0.003, 0.003], 0.003: [0.0, 0.001], 0.006: [0.0, 0.0]}, 0.003),
        ({0.001: [0.002], 0.003: [0.0, 0.001], 0.006: [0.0, 0.0]}, 0.003),
        ({0.001: [0.009, 0.009], 0.003: [0.0, 0.0], 0.006: [0.0, 0.5]}, 0.001),
        ({0.001: [0.5], 0.003: [0.0, 0.0], 0.006: [0.0, 0.5]}, 0.003),
        ({0.001: [0.5, 0.5], 0.003: [0.2, 0.4]}, 0.003),
        ({}, None),
    ],
    ids=["smaller", "noise", "one_seed", "cliff", "only_cliff", "unlearned", "none"],
)
def test_the_smallest_rate_within_noise_and_before_no_cliff(
    errors: dict[float, list[float]], chosen: float | None
) -> None:
    tuning = {rate: {i: (e, e) for i, e in enumerate(of, 1000)} for rate, of in errors.items()}
    assert choose_smallest_rate(tuning, fits=0.01) == chosen


def test_the_rule_of_v2_1_asks_for_the_other_seed_of_rates_near_the_best() -> None:
    known = {1000: (0.0, 0.01), 1001: (0.0, 0.01)}
    tuning = {0.001: {1000: (0.001, 0.1)}, 0.003: known, 0.006: {1000: (0.009, 0.9)}}
    nexts = [next_tuning(load_suite(name), "flipflop", tuning) for name in ("v2", "v2_1")]
    assert nexts == [[], [(0.001, 1001)]]


def search(errors: dict[float, float]) -> tuple[list[list[tuple[float, int]]], float | None]:
    """Return the rounds of a search in which every seed of a rate has this error, and the rate."""
    tuning: dict[float, dict[int, tuple[float, float]]] = {}
    rounds = []
    while runs := next_tuning(SUITE, "flipflop", tuning):
        rounds.append(runs)
        for rate, seed in runs:
            error = errors[rate]
            tuning.setdefault(rate, {})[seed] = FAILED if math.isinf(error) else (error, error)
    return rounds, choose_rate(tuning)


def test_a_search_goes_outwards_and_tries_near_rates_again() -> None:
    errors = dict.fromkeys(PROTOCOL.all_rates, 0.5) | {0.003: 0.3, 0.001: 0.1, 0.0005: 0.11}
    rounds, rate = search(errors)
    assert rounds == [
        [(0.003, 1000), (0.006, 1000)],
        [(0.001, 1000)],
        [(0.0005, 1000)],
        [(0.001, 1001), (0.0005, 1001)],
    ]
    assert rate == 0.001
    errors[0.0005] = 0.05
    rounds, rate = search(errors)
    assert rounds[3:] == [[(0.00025, 1000)]], "beyond the protocol's rates; no other is near"
    assert rate == 0.0005


@given(st.lists(st.sampled_from([0.0, 0.1, 0.11, 0.5, math.inf]), min_size=8, max_size=8))
def test_a_search_ends_and_asks_for_no_run_twice(values: list[float]) -> None:
    rounds, rate = search(dict(zip(PROTOCOL.all_rates, values, strict=True)))
    runs = [run for of in rounds for run in of]
    assert len(runs) == len({*runs}) <= 16
    assert (rate is None) == all(math.isinf(dict(zip(PROTOCOL.all_rates, values, strict=True))[r])
                                 for r, _ in runs)  # fmt: skip


def test_only_seeds_at_the_chosen_rate_count() -> None:
    of = rows(tuned("cope", lr=0.003), *(run("cope", seed) for seed in (0, 1)),
              run("cope", 2, lr=0.006), run("rope", 0))  # fmt: skip
    scores = score(SUITE, of, NONE)
    assert {*scores.cells["entry"]} == {"cope"}, "rope was not tuned"
    assert {*scores.cells["n"]} == {2}
    assert {*scores.cells["lr"]} == {0.003}


def test_a_seed_generalises_if_it_does_to_every_scored_split() -> None:
    errors = [0.0] * len(SPLITS)
    bad = [0.5, *errors[1:]]
    far = [*errors[:-1], 0.021]
    at_the_threshold = [*errors[:-1], 0.02]
    of = rows(tuned("cope"), run("cope", 0, errors), run("cope", 1, bad), run("cope", 2, far),
              run("cope", 3, at_the_threshold), run("cope", 4, None))  # fmt: skip
    (row,) = score(SUITE, of, NONE).success().iter_rows(named=True)
    assert (row["k"], row["n"], row["learned"], row["yours"]) == (3, 5, 3, 0)
    assert 0.2 < row["low"] < 0.6 < row["high"] < 0.9
    cells = score(SUITE, of, NONE).cells
    last = cells.filter(split=SPLITS[-1]).row(0, named=True)
    assert (last["k"], last["n"], last["failed"], last["measured"]) == (3, 5, 1, 4)


def test_a_finished_result_counts_before_a_failed_one_then_a_shipped_one() -> None:
    for shipped, own, error in (
        (0.25, 0.5, 0.25), (0.25, None, 0.25), (None, 0.5, 0.5), (None, None, None),
    ):  # fmt: skip
        united = unite(rows(run("cope", 0, shipped)), rows(run("cope", 0, own)))
        assert united["error"].to_list() == [error] * len(SPLITS)
    twice = unite(rows(run("cope", 0, 0.25)), rows(run("cope", 0, 0.5, run_id="another")))
    assert {*twice["error"]} == {0.25}, "the same run under another identity"


def test_runs_made_again_flip_where_they_are_on_the_other_side() -> None:
    first = rows(tuned("cope"), *(run("cope", seed) for seed in (0, 1)))
    again = rows(run("cope", 0, 0.5, started=3e9), run("cope", 1, 0.0, started=2e9))
    cells = score(SUITE, first, NONE, again).cells
    assert {*cells.select("k", "n", "again", "flips").iter_rows()} == {(2, 2, 1, 1)}


def test_own_runs_are_counted_as_yours() -> None:
    own = rows(tuned("mine"), run("mine", 0), run("rope", 1))
    scores = score(SUITE, rows(tuned("rope"), run("rope", 0)), own)
    yours = {row["entry"]: row["yours"] for row in scores.success().iter_rows(named=True)}
    assert yours == {"mine": 1, "rope": 1}


def test_the_cost_is_relative_to_rope_with_the_same_seed() -> None:
    runs = [
        run(entry, seed, train_s=seconds * (1 + seed), machine="m", started=2e9 + late)
        for entry, seconds, late in (("rope", 10.0, 0), ("cope", 15.0, 60))
        for seed in (0, 1)
    ]
    cells = score(SUITE, rows(tuned("rope"), tuned("cope"), *runs), NONE).cells
    costs = {*cells.filter(pl.col("entry") == "cope").select("cost", "near").iter_rows()}
    assert costs == {(1.5, True)}


def test_success_on_the_suite_is_ranked_beside_errors_on_text() -> None:
    success = {(task, entry): k / n for task, entry, k, n, *_ in SHIPPED.success().iter_rows()}
    for row in compare_with_text(SHIPPED, 12).iter_rows(named=True):
        text = SHIPPED.cells.filter(task="text", split=row["split"]).select("entry", "mean")
        pairs = [
            (fmean(success[task, entry] for task in RANKED), error)
            for entry, error in text.iter_rows()
        ]
        assert row["n"] == len(pairs) == 12
        rank = spearmanr(*zip(*pairs, strict=True), alternative="less")
        assert row["rho"] == pytest.approx(rank.statistic)
        # Of 100,000 permutations; spearmanr approximates the distribution.
        assert row["p"] == pytest.approx(rank.pvalue, abs=0.01)
        assert -1 < row["low"] < row["rho"] < row["high"] < 0.7
    assert compare_with_text(SHIPPED, 13).is_empty()


def test_a_sentence_says_whether_the_suite_predicts_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_text(SHIPPED) == []
    monkeypatch.setattr(tables, "compare_with_text", partial(compare_with_text, least=12))
    (sentence,) = describe_text(SHIPPED)
    assert "-0.67 [-0.94, -0.1" in sentence
    assert "at 8 times (p = 0.03, n = 12); " in sentence
