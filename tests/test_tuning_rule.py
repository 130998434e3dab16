"""The search for a learning rate: which runs it does, and that it would have chosen v1's rates."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.leaderboard.file import shipped_rows
from pe_lab.results.leaderboard.scores import chosen_rates
from pe_lab.results.leaderboard.tuning import FAILED, Measured, chosen_rate, next_runs
from pe_lab.results.suite import TUNING, load_suite
from pe_lab.results.suite_file import Protocol, Search

SEARCH: dict[str, Any] = {"start": (0.003, 0.006), "near_error": 0.02, "near_loss": 5, "runs": 6}
RATES = (0.0005, 0.001, 0.003, 0.006, 0.012, 0.024)


def protocol(rates: tuple[float, ...] = RATES, **search: Any) -> Protocol:
    v1 = load_suite("v1").protocol
    changed: Any = replace(v1, rates=rates, search=Search(**SEARCH | search))  # type: ignore[type-var]
    return changed  # type: ignore[no-any-return]


def searched(
    of: Protocol, result: Callable[[float, int], Measured]
) -> tuple[float | None, list[tuple[float, int]]]:
    """The chosen rate and all runs, where each run measures ``result``."""
    found: dict[float, dict[int, Measured]] = defaultdict(dict)
    runs: list[tuple[float, int]] = []
    while missing := next_runs(of, found):
        assert not {*missing} & {*runs}
        runs += missing
        for rate, seed in missing:
            found[rate][seed] = result(rate, seed)
    return chosen_rate({rate: [*of.values()] for rate, of in found.items()}), runs


def test_it_would_have_chosen_v1s_rate_in_95_percent_of_the_cells_with_a_third_fewer_runs() -> None:
    """Of rates that v1 has not tried nothing is known: they count as failed, and not as runs."""
    v1, v2 = load_suite("v1"), load_suite("v2")
    rows = shipped_rows(v1)[0].filter(split=IN_DOMAIN, phase=TUNING)
    cells: dict[tuple[str, str], dict[tuple[float, int], Measured]] = defaultdict(dict)
    names = ("task", "entry", "lr", "seed", "error", "loss")
    for task, entry, lr, seed, error, loss in rows.select(names).iter_rows():
        cells[task, entry][lr, seed] = FAILED if error is None else (error, loss)
    assert {len(runs) for runs in cells.values()} == {8}
    of: Any = replace(v1.protocol, search=v2.protocol.search)  # type: ignore[type-var]
    same = done = 0
    seconds = rows.select(pl.col("train_s").sum()).item()
    times = {
        (t, e, lr, s): took for t, e, lr, s, took in rows.select(*names[:4], "train_s").iter_rows()
    }
    spent = 0.0
    for cell, measured in cells.items():
        every: dict[float, list[Measured]] = defaultdict(list)
        for (lr, _), one in measured.items():
            every[lr].append(one)
        chosen, runs = searched(of, lambda lr, seed, m=measured: m.get((lr, seed), FAILED))  # type: ignore[misc]
        same += chosen == chosen_rate(every)
        known = [run for run in runs if run in measured]
        done += len(known)
        spent += sum(times[*cell, *run] or 0.0 for run in known)
    print(
        f"{same} of {len(cells)} the same, {done} of {len(rows)} runs, {spent / seconds:.2f} time"
    )
    assert same >= 0.95 * len(cells)
    assert done <= 0.67 * len(rows)
    assert spent <= 0.66 * seconds


BEST_AT = {
    # One seed decides, as all others are far.
    0.003: [(0.003, 1000), (0.006, 1000), (0.001, 1000)],
    0.006: [(0.003, 1000), (0.006, 1000), (0.012, 1000)],
    0.012: [(0.003, 1000), (0.006, 1000), (0.012, 1000), (0.024, 1000)],
    # At an end of the rates one more is tried, and no further one.
    0.0005: [(0.003, 1000), (0.006, 1000), (0.001, 1000), (0.0005, 1000), (0.00025, 1000)],
    0.048: [(0.003, 1000), (0.006, 1000), (0.012, 1000), (0.024, 1000), (0.048, 1000)],
}


@pytest.mark.parametrize("best", BEST_AT)
def test_rates_are_tried_outwards_while_the_best_is_the_outermost(best: float) -> None:
    def result(rate: float, _: int) -> Measured:
        ratio = max(rate, best) / min(rate, best)
        return (0.1 * ratio, 1.0)

    assert searched(protocol(), result) == (best, BEST_AT[best])


def test_another_seed_is_for_rates_near_the_best_one_alone() -> None:
    results = {0.001: (0.5, 1.0), 0.003: (0.0, 0.1), 0.006: (0.02, 0.4), 0.012: (0.021, 0.1)}
    assert searched(protocol(), lambda rate, _: results[rate]) == (
        0.003,
        [(0.003, 1000), (0.006, 1000), (0.001, 1000), (0.003, 1001), (0.006, 1001)],
    )


def test_a_rate_with_as_low_an_error_and_a_much_higher_loss_is_not_near() -> None:
    results = {0.001: (0.0, 0.51), 0.003: (0.0, 0.1), 0.006: (0.0, 0.49)}
    _, runs = searched(protocol(), lambda rate, _: results[rate])
    assert [rate for rate, seed in runs if seed == 1001] == [0.003, 0.006]


def test_where_all_near_rates_fail_on_another_seed_the_others_are_tried_on_it() -> None:
    first = {0.001: (0.5, 1.0), 0.003: (0.0, 0.1), 0.006: (0.0, 0.1), 0.012: (0.5, 1.0)}

    def result(rate: float, seed: int) -> Measured:
        return FAILED if seed == 1001 and rate > 0.001 else first.get(rate, FAILED)

    assert searched(protocol(), result)[0] == 0.001


def test_a_choice_that_the_other_seed_moves_to_an_edge_is_no_end() -> None:
    """0.003 is the lowest that was tried until then."""
    first = {0.001: (0.3, 1.0), 0.003: (0.01, 1.0), 0.006: (0.0, 1.0), 0.012: (0.5, 1.0)}
    second = {0.003: (0.0, 1.0), 0.006: (0.4, 1.0)}

    def result(rate: float, seed: int) -> Measured:
        return first[rate] if seed == 1000 else second[rate]

    chosen, runs = searched(protocol(), result)
    assert chosen == 0.003
    assert runs[-1] == (0.001, 1000)


def test_a_later_best_rate_gets_the_seeds_that_others_have() -> None:
    """Else it would not be compared with them: 0.001 is tried last, and then none is near it."""
    first = {0.0005: (0.5, 1.0), 0.001: (0.0, 0.1), 0.003: (0.01, 1.0), 0.006: (0.0, 1.0)}
    first[0.012] = (0.5, 1.0)
    second = {0.001: (0.0, 0.1), 0.003: (0.0, 1.0), 0.006: (0.4, 1.0)}

    def result(rate: float, seed: int) -> Measured:
        return first[rate] if seed == 1000 else second[rate]

    chosen, runs = searched(protocol(), result)
    assert chosen == 0.001
    assert (0.001, 1001) in runs


def test_failed_runs() -> None:
    """Where all of the first rates failed, the others are tried."""
    chosen, runs = searched(protocol(), lambda rate, _: FAILED if rate > 0.002 else (0.1, rate))
    assert chosen == 0.00025
    assert {rate for rate, _ in runs} == {0.00025, *RATES}
    assert searched(protocol(), lambda *_: FAILED)[0] is None


def test_rates_on_fewer_seeds_than_others_are_not_chosen() -> None:
    """0.006 was near on no seed, though its only run is below the mean of the best one's two."""
    runs = {0.003: [(0.0, 0.1), (0.4, 0.1)], 0.006: [(0.1, 0.1)]}
    assert chosen_rate(runs) == 0.003


def test_without_a_search_all_rates_are_tried_on_all_seeds() -> None:
    of = load_suite("v1").protocol
    chosen, runs = searched(of, lambda rate, _: (abs(rate - 0.012), 1.0))
    assert (chosen, len(runs)) == (0.012, 8)
    assert of.all_rates == of.rates


def test_rates_that_a_search_ruled_out_count_as_tried() -> None:
    """As tables mark entries that were tried at fewer rates than the protocol has."""

    def tried(*rates: float) -> tuple[float, int]:
        rows = pl.DataFrame(
            {"lr": rates, "error": [0.3 if lr == 0.001 else 0.1 * lr for lr in rates]}
        ).with_columns(
            task=pl.lit("sort"), entry=pl.lit("cope"), seed=1000, split=pl.lit(IN_DOMAIN),
            phase=pl.lit(TUNING), loss=pl.col("error") + 9 * (pl.col("lr") != 0.003),
        )  # fmt: skip
        ((_, _, chosen, count),) = chosen_rates(rows, protocol()).iter_rows()
        return chosen, count

    assert tried(0.003, 0.006) == (0.003, 0)
    assert tried(0.001, 0.003, 0.006) == (0.003, len(RATES))
