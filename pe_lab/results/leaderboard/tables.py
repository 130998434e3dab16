"""The tables of ``pe-lab leaderboard`` over families and tasks."""

from collections.abc import Iterable, Mapping

import polars as pl

from pe_lab.common.metrics import IN_DOMAIN
from pe_lab.results.formats import Cell, Table
from pe_lab.results.leaderboard.families import FITS, rates_by, ties
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.leaderboard.texts import (
    GUESSING,
    PARTLY,
    display_name,
    entry_order,
    missing_text,
    rate_text,
    times_text,
)
from pe_lab.results.suite import Suite

RATE = (
    "k/n (95 % Wilson interval in %): of n runs and splits, k have an error at or below the "
    "threshold of the split; the interval counts runs, as splits of one run are not independent"
)
BEST = (
    "the highest rate of the column and those that do not differ from it (exact test of the share "
    "of splits that a run generalises to, Holm over all pairs; of entries with all tasks that were "
    "run)."
)


def by_family(suite: Suite, tasks: Iterable[str]) -> dict[str, list[str]]:
    """These tasks, family by family."""
    families: dict[str, list[str]] = {}
    for name in tasks:
        families.setdefault(suite.tasks[name].family, []).append(name)
    return families


def overview(found: Scores, columns: Mapping[str, list[str]], title: str) -> Table:
    """A row an entry, a column a family (or a task): P(generalises) over its tasks and splits."""
    tasks = [task for several in columns.values() for task in several]
    fits = rates_by(found, FITS, {FITS: tasks})
    rates = rates_by(found, "generalises", dict(columns))
    entries, controls = entry_order(found, tasks)
    best = {name: ties(found, several, entries).best for name, several in columns.items()}
    shown = found.cells.filter(pl.col("task").is_in(tasks))
    cost = dict(shown.group_by("entry").agg(pl.col("cost").median()).iter_rows())

    def line(entry: str) -> list[Cell]:
        cells = [Cell(rate_text(fits.get(entry, {}).get(FITS), missing_text(found, entry, tasks)))]
        for name in columns:
            missing = missing_text(found, entry, columns[name])
            rate = rates.get(entry, {}).get(name)
            cells.append(Cell(rate_text(rate, missing), entry in best[name]))
        return [Cell(display_name(found, entry, tasks)), *cells, Cell(times_text(cost.get(entry)))]

    rows, closing = [line(entry) for entry in entries], [line(entry) for entry in controls]
    guesses = [Cell(_guessed(found, several)) for several in columns.values()]
    closing.append([Cell(GUESSING), Cell(_guessed(found, tasks, FITS)), *guesses, Cell("")])
    caption = [RATE]
    if any(PARTLY in cell.text for row in (*rows, *closing) for cell in row):
        caption.append(f"{PARTLY}: some of these tasks are not run")
    caption.append("time: of training, in that of rope on the same kind of machine")
    return Table(
        title=title,
        columns=["entry", FITS, *columns, "time"],
        words=1,
        rows=rows,
        caption="; ".join(caption) + ".",
        best=BEST,
        closing=closing,
    )


def _guessed(found: Scores, tasks: Iterable[str], column: str = "") -> str:
    """On how many splits of these tasks guessing would count as generalising, or as fitting."""
    inside = pl.col("split") == IN_DOMAIN
    cells = found.cells.filter(pl.col("task").is_in(list(tasks)) & pl.col("guess").is_not_null())
    splits = cells.filter(inside if column == FITS else ~inside).unique(["task", "split"])
    reached = splits.filter(pl.col("guess") <= pl.col("threshold"))
    return f"{len(reached)}/{len(splits)}" if len(splits) else ""
