"""The tables of ``pe-lab leaderboard`` over families and tasks."""

from collections.abc import Iterable, Mapping

import polars as pl

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.formats import Cell, Table
from pe_lab.results.leaderboard.families import FITS, rates_by, ties
from pe_lab.results.leaderboard.order import ORDER, SUITE, ordered
from pe_lab.results.leaderboard.scores import Scores, near_median
from pe_lab.results.leaderboard.texts import (
    GUESSING,
    TIME,
    UNLEARNED_NOTE,
    display_name,
    entry_order,
    interval_text,
    missing_text,
    rate_text,
    share_text,
    times_text,
)
from pe_lab.results.suite import Suite

RATE = (
    "P(generalises) in %: the share of seeds with an error at or below the threshold, its mean "
    "over scored splits, then over tasks (95 % interval: of other seeds of the same tasks, "
    "a run being one observation); 1/2: of one of the family's two tasks, which compares with the "
    "same task only; fits: the same in domain, of all tasks that the entry has run; tasks: how "
    f"many these are; {UNLEARNED_NOTE.format(task='a task of the column')}"
)
BEST = (
    "the highest rate of the column and those that do not differ from it (exact test of the share "
    "of splits that a run generalises to, at 5 % after Holm over all pairs; of encodings with all "
    "tasks that two or more of them have run; no controls)."
)
UNDECIDED = "§"
UNDECIDED_NOTE = (
    f"{UNDECIDED}: lower, with too few seeds to differ from the highest whatever their errors; its "
    "interval reaches into that of the highest."
)


def by_family(suite: Suite, tasks: Iterable[str]) -> dict[str, list[str]]:
    """These tasks, family by family."""
    families: dict[str, list[str]] = {}
    for name in tasks:
        families.setdefault(suite.tasks[name].family, []).append(name)
    return families


def overview(
    found: Scores, columns: Mapping[str, list[str]], title: str, sort: str | None = None
) -> Table:
    """A row an entry, a column a family (or a task) that some entry has run: P(generalises) over
    its tasks and splits.

    Args:
        sort: a column, or ``suite``; see ``ordered``.
    """
    tasks = [task for several in columns.values() for task in several]
    fits = rates_by(found, FITS, {FITS: tasks})
    rates = rates_by(found, "generalises", dict(columns))
    listed, controls = entry_order(found, tasks)
    shown = {name: of for name, of in columns.items() if any(name in r for r in rates.values())}
    tied = {name: ties(found, several, listed) for name, several in shown.items()}
    cost = _costs(found, tasks)

    def line(entry: str) -> list[Cell]:
        fit = fits.get(entry, {}).get(FITS)
        covered = Cell(f"{0 if fit is None else fit.tasks}/{len(tasks)}")
        of = "" if fit is None else f"{share_text(fit.share)} ({interval_text(fit)})"
        cells = [covered, Cell(of or missing_text(found, entry, tasks))]
        for name, several in shown.items():
            rate = rates.get(entry, {}).get(name)
            text = rate_text(rate, missing_text(found, entry, several))
            mark = f" {UNDECIDED}" if entry in tied[name].undecided else ""
            cells.append(Cell(text + mark, entry in tied[name].best))
        return [
            Cell(display_name(found, entry, tasks)),
            *cells,
            Cell(times_text(*cost.get(entry, (None, None)))),
        ]

    rows = [line(entry) for entry in ordered(listed, rates, sort)]
    closing = [line(entry) for entry in controls]
    guesses = [Cell(_guessed(found, several)) for several in shown.values()]
    closing.append(
        [Cell(GUESSING), Cell(""), Cell(_guessed(found, tasks, FITS)), *guesses, Cell("")]
    )
    order = ORDER if sort is None else f"order: as {'in the suite' if sort == SUITE else sort}"
    return Table(
        title=title,
        columns=["entry", "tasks", FITS, *shown, "time"],
        words=1,
        rows=rows,
        caption=f"{RATE}; {TIME}; {order}.",
        best=BEST,
        marks=UNDECIDED_NOTE if any(of.undecided for of in tied.values()) else "",
        closing=closing,
    )


def overview_notes(found: Scores, columns: Mapping[str, list[str]]) -> list[str]:
    """One line each: the columns and tasks that no entry has run, and the columns in which no
    entry differs significantly from the highest."""
    run = set(found.cells["task"])
    left = [name for name, several in columns.items() if not run & set(several)]
    some = [t for n, several in columns.items() if n not in left for t in several if t not in run]
    notes = [f"not run: {', '.join(left)}"] if left else []
    if some:
        notes.append(f"not run, of the columns shown: {', '.join(some)}")
    for name, several in columns.items():
        of = ties(found, several, entry_order(found, several)[0])
        if of.least_p is not None and not of.best:
            notes.append(
                f"{name}: no encoding differs significantly from the highest; the smallest "
                f"corrected p of two of the {of.compared} is {of.least_p:.2g} (exact test, Holm "
                "over all pairs)"
            )
    return notes


def _costs(found: Scores, tasks: Iterable[str]) -> dict[str, tuple[float | None, bool]]:
    """entry -> the median over these tasks of the time of training relative to rope's, over those
    where it was taken at about the same time if there are such, and whether there are."""
    inside = (pl.col("split") == IN_DOMAIN) & pl.col("task").is_in(list(tasks))
    near, cost = pl.col("near"), pl.col("cost")
    costs = found.cells.filter(inside).group_by("entry").agg(near_median(cost, near), near.any())
    return {entry: (value, at_once) for entry, value, at_once in costs.iter_rows()}


def _guessed(found: Scores, tasks: Iterable[str], column: str = "") -> str:
    """What guessing would have for these tasks, in %: P(generalises), or P(fits)."""
    inside = pl.col("split") == IN_DOMAIN
    cells = found.cells.filter(pl.col("task").is_in(list(tasks)) & pl.col("guess").is_not_null())
    splits = cells.filter(inside if column == FITS else ~inside).unique(["task", "split"])
    reached = splits.group_by("task").agg((pl.col("guess") <= pl.col("threshold")).mean())
    mean = reached["guess"].mean()
    return share_text(float(mean)) if isinstance(mean, float) else ""
