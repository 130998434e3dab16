"""The success rate as a function of the threshold, and which entries come first at others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.leaderboard.families import Rate, entry_order, rates_by
from pe_lab.results.leaderboard.scores import Scores

THRESHOLDS = (0.0025, 0.0035, 0.005, 0.007, 0.01, 0.014, 0.02, 0.035, 0.05, 0.07, 0.1)
"""Errors in about equal steps of a logarithmic axis."""
TABLED = (0.0025, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Those that a table has."""
Rates = Mapping[str, Mapping[str, Rate]]
"""entry -> group of tasks -> its success rate."""


def rates_at(found: Scores, groups: dict[str, list[str]], threshold: float) -> Rates:
    """As ``rates_by``, with one threshold for all scored splits out of domain."""
    scored = pl.col("threshold").is_not_null() & (pl.col("split") != IN_DOMAIN)
    limit = pl.when(scored).then(threshold).otherwise("threshold")
    return _with(found, limit, groups)


def in_common(found: Scores, tasks: Sequence[str]) -> tuple[list[str], list[str]]:
    """The entries, controls among them, that have run at least half of those of these tasks that
    one has run; and the tasks that all of these entries have run."""
    listed, controls = entry_order(found, tasks)
    cells = found.cells.filter(pl.col("task").is_in(list(tasks)))
    run = dict(cells.group_by("entry").agg(pl.col("task").unique()).iter_rows())
    begun = [task for task in tasks if any(task in of for of in run.values())]
    entries = [e for e in (*listed, *controls) if e in run and 2 * len(run[e]) >= len(begun)]
    return entries, [task for task in begun if all(task in run[entry] for entry in entries)]


def order_at(found: Scores, tasks: Sequence[str], times: float) -> list[tuple[str, float]]:
    """The entries of ``in_common`` with their success rate over the tasks of all, the highest
    first, with the stated thresholds so many times as large."""
    entries, common = in_common(found, tasks)
    rates = _with(found, pl.col("threshold") * times, {"all": common})
    shares = [(entry, rates[entry]["all"].share) for entry in entries if entry in rates]
    return sorted(shares, key=lambda pair: -pair[1])


def _with(found: Scores, threshold: pl.Expr, groups: dict[str, list[str]]) -> Rates:
    rows = found.rows.with_columns(threshold=threshold)
    return rates_by(replace(found, rows=rows), "generalises", groups)
