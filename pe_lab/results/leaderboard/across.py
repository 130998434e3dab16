"""Entries over several tasks, by the error relative to that of guessing."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.leaderboard.scores import WORST, Scores
from pe_lab.results.statistics.across_tasks import (
    ByTask,
    improvement_interval,
    iqm,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
)
from pe_lab.results.statistics.pairs import differing, pairs

BASELINE = "rope"
TAUS = (0.02, 0.1, 0.5)
"""Of the errors relative to guessing, for the profile's columns."""
Interval = tuple[float, float]


@dataclass(frozen=True)
class OverTasks:
    """An entry over several tasks, all with the same weight.

    Args:
        runs: of all tasks.
        iqm: the interquartile mean of the errors, and its interval (None: a task has one run).
        lower_than, higher_than: the other entries that it differs from significantly.
        better: the probability of a lower error than the baseline's, and its interval.
        profile: the share of runs with at most each error of ``TAUS``.
    """

    runs: int
    iqm: float
    interval: Interval | None
    lower_than: frozenset[str]
    higher_than: frozenset[str]
    better: tuple[float, Interval] | None
    profile: Sequence[float]


def over_tasks(
    found: Scores, tasks: Sequence[str]
) -> list[tuple[tuple[str, ...], dict[str, OverTasks]]]:
    """For each set of tasks that some entry has run, the largest first: every entry that has all
    of them, the lowest interquartile mean first. Numbers over other tasks would not compare."""
    values = normalised(found, tasks)
    sets = {tuple(task for task in tasks if task in of) for of in values.values()}
    return [
        (
            one,
            _compared(
                {
                    entry: {task: of[task] for task in one}
                    for entry, of in values.items()
                    if set(one) <= set(of)
                }
            ),
        )
        for one in sorted(sets, key=lambda one: (-len(one), one))
    ]


def _compared(values: dict[str, ByTask]) -> dict[str, OverTasks]:
    differ = differing(pairs(values))
    baseline = values.get(BASELINE)
    found = {}
    for entry in sorted(values, key=lambda entry: iqm(values[entry])):
        of = values[entry]
        lower = {e for e in differ[entry] if probability_of_improvement(of, values[e]) > 0.5}
        better = None
        if entry != BASELINE and baseline is not None:
            better = probability_of_improvement(of, baseline), improvement_interval(of, baseline)
        found[entry] = OverTasks(
            runs=sum(map(len, of.values())),
            iqm=iqm(of),
            interval=stratified_bootstrap(of),
            lower_than=frozenset(lower),
            higher_than=frozenset(differ[entry] - lower),
            better=better,
            profile=performance_profile(of, TAUS),
        )
    return found


def normalised(found: Scores, tasks: Sequence[str]) -> dict[str, ByTask]:
    """entry -> task -> for each run the error divided by that of guessing, at most 1, its mean over
    the scored splits."""
    scored = found.rows.filter(
        pl.col("counts")
        & pl.col("threshold").is_not_null()
        & (pl.col("split") != IN_DOMAIN)
        & pl.col("task").is_in(list(tasks))
    )
    guess = scored.group_by("task", "split").agg(usual=pl.col("guess").median())
    # A run that failed did not measure what guessing gives.
    share = pl.col("error").fill_null(WORST) / pl.coalesce("guess", "usual", pl.lit(WORST))
    runs = (
        scored.join(guess, on=["task", "split"], how="left", maintain_order="left")
        .group_by("entry", "task", "run_id", maintain_order=True)
        .agg(share.clip(upper_bound=1).mean().alias("share"))
    )
    table: dict[str, dict[str, list[float]]] = {}
    for entry, task, value in runs.select("entry", "task", "share").iter_rows():
        table.setdefault(entry, {}).setdefault(task, []).append(value)
    return dict(table)
