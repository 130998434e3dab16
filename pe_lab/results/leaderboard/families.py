"""P(generalises) by family of tasks, and which entries cannot be told apart."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.leaderboard.scores import WORST, Scores
from pe_lab.results.statistics.across_tasks import ByTask
from pe_lab.results.statistics.letters import compact_letters
from pe_lab.results.statistics.pairs import Pair, holm, least_p_possible, pairs
from pe_lab.results.statistics.power import LEVEL
from pe_lab.results.statistics.proportions import stratified_interval

FITS = "fits"
LEARNED = 0.5
"""The share of an entry's runs that fit a task in domain from which it counts as learned."""


@dataclass(frozen=True)
class Rate:
    """How often an entry fits or generalises, over several tasks.

    Args:
        share: the mean over tasks of the mean over their scored splits of the share of runs.
            Every task weighs the same, and every split of a task.
        low, high: its 95 % interval (``stratified_interval``), which speaks of other seeds of the
            same tasks. Runs are its observations: splits of one run are not independent, and a
            run counts as the share of splits that it generalises to.
        runs: of all tasks.
        tasks: with runs, of ``of`` tasks.
        unlearned: of these tasks, those that fewer than half of the runs fit in domain.
    """

    share: float
    low: float
    high: float
    runs: int
    tasks: int
    of: int
    unlearned: int


def rates_by(
    found: Scores, column: str, groups: dict[str, list[str]]
) -> dict[str, dict[str, Rate]]:
    """entry -> group -> how often its runs generalise to the scored splits of the group's tasks,
    or with ``column`` fits, how often they fit in domain."""
    table: dict[str, dict[str, Rate]] = {}
    runs = _runs(found, column)
    fits = _runs(found, FITS).group_by("entry", "task").agg(fits=pl.col("k").mean())
    unlearned = set(fits.filter(pl.col("fits") < LEARNED).select("entry", "task").iter_rows())
    for group, tasks in groups.items():
        of_task = (
            runs.filter(pl.col("task").is_in(tasks))
            .group_by("entry", "task", maintain_order=True)
            .agg((pl.col("k") / pl.col("n")).mean().alias("share"), pl.len())
        )
        strata: dict[str, list[tuple[float, int]]] = {}
        for entry, share, count in of_task.select("entry", "share", "len").iter_rows():
            strata.setdefault(entry, []).append((share, count))
        for entry, several in strata.items():
            table.setdefault(entry, {})[group] = Rate(
                sum(share for share, _ in several) / len(several),
                *stratified_interval(several),
                runs=sum(n for _, n in several),
                tasks=len(several),
                of=len(tasks),
                unlearned=sum((entry, task) in unlearned for task in tasks),
            )
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
    over all pairs of entries with at least the protocol's number of runs of every task that two of
    them have so many of: one that has only the easier tasks is not compared, and a task that one
    entry alone has is not read.

    Args:
        letters: of each of these entries: two that share none differ (``compact_letters``); ``a``
            has the one that generalises most. Empty where nothing differs.
        best: the entry that generalises most, those as high and those that do not differ from it
            though they could; empty where nothing differs from it.
        undecided: those that do not differ from it, whose runs are too few to do so whatever their
            errors (``least_p_possible``), and whose interval (``Rate``) reaches into its own.
        compared: how many entries these are.
        least_p: the smallest corrected p of two of them; None where there are no two.
    """

    letters: dict[str, str]
    best: frozenset[str]
    undecided: frozenset[str] = frozenset()
    compared: int = 0
    least_p: float | None = None


def ties(found: Scores, tasks: Sequence[str], entries: Sequence[str]) -> Ties:
    """Which of these entries differ over these tasks."""
    seeds = found.suite.protocol.seeds
    values = {
        entry: {task: runs for task, runs in of.items() if len(runs) >= seeds}
        for entry, of in missed(found, tasks, entries).items()
    }
    having = Counter(task for of in values.values() for task in of)
    covered = [task for task, n in having.items() if n > 1] or list(having)
    values = {
        entry: {task: of[task] for task in covered}
        for entry, of in values.items()
        if of and set(covered) <= set(of)
    }
    means = {e: sum(sum(v) / len(v) for v in of.values()) / len(of) for e, of in values.items()}
    # Of equal means the one with more runs is the highest: more entries can differ from it.
    ordered = sorted(values, key=lambda e: (means[e], -sum(map(len, values[e].values())), e))
    tested = pairs({entry: values[entry] for entry in ordered})
    letters = compact_letters(ordered, tested)
    first = set(letters[ordered[0]]) if ordered else set()
    alike = [entry for entry in ordered if first & set(letters[entry])]
    if len(alike) == len(ordered):
        alike = []
    best = frozenset(
        entry
        for entry in alike
        if means[entry] == means[ordered[0]] or _could_differ(values, tested, ordered[0], entry)
    )
    rates = rates_by(found, "generalises", {"": covered})
    undecided = frozenset(
        entry
        for entry in alike
        if entry not in best and rates[entry][""].high >= rates[ordered[0]][""].low
    )
    least = min((pair.p_holm for pair in tested if pair.p_holm is not None), default=None)
    marks = {entry: mark for entry, mark in letters.items() if mark}
    return Ties(marks, best, undecided, len(ordered), least)


def _could_differ(values: Mapping[str, ByTask], tested: Sequence[Pair], a: str, b: str) -> bool:
    """Whether so many runs of these two could differ at all, the other pairs being as they are."""
    others = [pair.p for pair in tested if {pair.a, pair.b} != {a, b}]
    corrected = holm([*others, least_p_possible(values[a], values[b])])[-1]
    return corrected is not None and corrected <= LEVEL


def _runs(found: Scores, column: str) -> pl.DataFrame:
    """One row for each counting run: ``k`` of ``n`` scored splits that it generalises to."""
    inside = pl.col("split") == IN_DOMAIN
    rows = found.rows.filter(pl.col("counts") & pl.col("threshold").is_not_null())
    rows = rows.filter(inside if column == FITS else ~inside)
    reached = pl.col("error").fill_null(WORST) <= pl.col("threshold")
    return rows.group_by("entry", "task", "run_id", maintain_order=True).agg(
        k=reached.sum().cast(pl.Int64), n=pl.len().cast(pl.Int64)
    )
