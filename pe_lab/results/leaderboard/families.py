"""P(generalises) by family of tasks, and which entries cannot be told apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from pe_lab.common.metrics import IN_DOMAIN, wilson
from pe_lab.results.leaderboard.scores import WORST, Scores
from pe_lab.results.statistics.across_tasks import ByTask
from pe_lab.results.statistics.letters import compact_letters
from pe_lab.results.statistics.pairs import pairs

FITS = "fits"


@dataclass(frozen=True)
class Rate:
    """How often an entry fits or generalises, over the splits of several tasks.

    Args:
        k: of n runs and splits.
        runs: that these are of. Splits of one run are not independent: the 95 % Wilson interval
            ``low`` to ``high`` of k / n is that of as many observations as there are runs.
        tasks: with runs, of ``of`` tasks.
    """

    k: int
    n: int
    runs: int
    low: float
    high: float
    tasks: int
    of: int


def rates_by(
    found: Scores, column: str, groups: dict[str, list[str]]
) -> dict[str, dict[str, Rate]]:
    """entry -> group -> how often its runs generalise to the scored splits of the group's tasks,
    or with ``column`` fits, how often they fit in domain."""
    table: dict[str, dict[str, Rate]] = {}
    runs = _runs(found, column)
    for group, tasks in groups.items():
        part = runs.filter(pl.col("task").is_in(tasks))
        summed = part.group_by("entry", maintain_order=True).agg(
            pl.col("k").sum(), pl.col("n").sum(), pl.len(), tasks=pl.col("task").n_unique()
        )
        for entry, k, n, count, covered in summed.iter_rows():
            low, high = wilson(k / n * count, count)
            rate = Rate(k, n, count, low, high, covered, len(tasks))
            table.setdefault(entry, {})[group] = rate
    return table


def missed(found: Scores, tasks: Sequence[str], entries: Sequence[str]) -> dict[str, ByTask]:
    """entry -> task -> for each run the share of scored splits that it does not generalise to."""
    runs = _runs(found, "generalises").filter(pl.col("task").is_in(tasks))
    table: dict[str, dict[str, list[float]]] = {entry: {} for entry in entries}
    for entry, task, k, n in runs.select("entry", "task", "k", "n").iter_rows():
        if entry in table:
            table[entry].setdefault(task, []).append(1 - k / n)
    return {entry: values for entry, values in table.items() if values}


@dataclass(frozen=True)
class Ties:
    """Which entries differ in the shares of splits that their runs generalise to: exact test, Holm
    over all pairs of entries with at least the protocol's number of runs of some task, and with
    runs of every task that these have: one that has only the easier tasks is not compared.

    Args:
        letters: of each of these entries: two that share none differ (``compact_letters``); ``a``
            has the one that generalises most. Empty where nothing differs.
        best: the entry that generalises most and those that do not differ from it; empty where
            nothing differs from it.
    """

    letters: dict[str, str]
    best: frozenset[str]


def ties(found: Scores, tasks: Sequence[str], entries: Sequence[str]) -> Ties:
    """Which of these entries differ over these tasks."""
    values = {
        entry: of
        for entry, of in missed(found, tasks, entries).items()
        if max(map(len, of.values())) >= found.suite.protocol.seeds
    }
    covered = {task for of in values.values() for task in of}
    values = {entry: of for entry, of in values.items() if covered <= set(of)}
    means = {e: sum(sum(v) / len(v) for v in of.values()) / len(of) for e, of in values.items()}
    ordered = sorted(values, key=lambda entry: means[entry])
    letters = compact_letters(ordered, pairs({entry: values[entry] for entry in ordered}))
    first = set(letters[ordered[0]]) if ordered else set()
    best = frozenset(entry for entry in ordered if first & set(letters[entry]))
    if len(best) == len(ordered):
        best = frozenset()
    return Ties({entry: mark for entry, mark in letters.items() if mark}, best)


def _runs(found: Scores, column: str) -> pl.DataFrame:
    """One row for each counting run: ``k`` of ``n`` scored splits that it generalises to."""
    inside = pl.col("split") == IN_DOMAIN
    rows = found.rows.filter(pl.col("counts") & pl.col("threshold").is_not_null())
    rows = rows.filter(inside if column == FITS else ~inside)
    reached = pl.col("error").fill_null(WORST) <= pl.col("threshold")
    return rows.group_by("entry", "task", "run_id", maintain_order=True).agg(
        k=reached.sum().cast(pl.Int64), n=pl.len().cast(pl.Int64)
    )
