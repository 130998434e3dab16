"""The tables of ``pe-lab leaderboard`` over families and tasks. docs/method.md defines what they
show."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import polars as pl

from pe_lab.core.console import percent
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.output import first_of
from pe_lab.results.leaderboard.families import (
    FITS,
    NOT_RUN,
    SUITE,
    Rate,
    Ties,
    entry_order,
    guessed,
    missing,
    ordered,
    rates_by,
    relative_times,
    ties,
)
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.presentation.formats import Cell, Table
from pe_lab.results.suite import SCORE, TUNING

YOURS = "(yours)"
NOT_TUNED = "(not tuned)"
GUESSING = "guessing"
CLUSTERS = "‡"
UNLEARNED = "°"
"""The mark of a rate that counts a task in which most runs have not learned in domain."""
BEST = "not significantly different from the highest."


def conclusion(found: Scores, columns: Mapping[str, list[str]]) -> str:
    """What the table of these columns shows, in one or two sentences."""
    tasks = [task for several in columns.values() for task in several]
    rates = rates_by(found, "generalises", dict(columns))
    listed = entry_order(found, tasks)[0]
    run = [name for name in columns if any(name in of for of in rates.values())]
    if not run:
        return "No run is scored yet."
    tied = {name: ties(found, columns[name], listed) for name in run}
    wins = {entry: sum(entry in one.best for one in tied.values()) for entry in listed}
    most = max(wins.values())
    encodings = [of for entry, of in rates.items() if entry in (*listed, "none")]
    failed = [n for n in run if not any(n in of and of[n].share for of in encodings)]
    if not most:
        sentence = "No success rate differs significantly from the highest"
    elif len(run) == 1:
        task, alike = run[0], tied[run[0]].alike
        shares = [round(rates[entry][task].share, 9) for entry in alike]
        highest = [e for e, share in zip(alike, shares, strict=True) if share == shares[0]]
        have = "have" if len(highest) > 1 else "has"
        sentence = (
            f"On {task}, {first_of(highest)} {have} the highest success rate of all encodings"
        )
    else:
        of = "tasks" if len(tasks) == len(columns) else "families of tasks"
        best = ordered([entry for entry in wins if wins[entry] == most], rates)
        sentence = (
            f"Of all encodings, {first_of(best)} {'have' if len(best) > 1 else 'has'} the highest "
            f"success rate, or one not significantly lower, in {most} of {len(run)} {of}"
        )
    none = f" No encoding generalises on {', '.join(failed)}." if failed else ""
    return f"{sentence}.{none}"


def overview(
    found: Scores,
    columns: Mapping[str, list[str]],
    title: str,
    sort: str | None = None,
    shown: Collection[str] | None = None,
) -> Table:
    """A row an entry, a column a family (or a task) that some entry has run: the success rate.

    Args:
        sort: a column, or ``suite``; see ``ordered``.
        shown: the entries with a row; None: all.
    """
    tasks = [task for several in columns.values() for task in several]
    fits = rates_by(found, FITS, {FITS: tasks})
    rates = rates_by(found, "generalises", dict(columns))
    listed, controls = entry_order(found, tasks)
    run = {name: of for name, of in columns.items() if any(name in r for r in rates.values())}
    tied = {name: ties(found, several, listed) for name, several in run.items()}
    times = relative_times(found, tasks)

    def line(entry: str) -> list[Cell]:
        fit = fits.get(entry, {}).get(FITS)
        cells = [
            Cell(f"{0 if fit is None else fit.tasks}/{len(tasks)}"),
            _rate(fit, missing(found, entry, tasks), marked=False),
        ]
        for name, several in run.items():
            rate = rates.get(entry, {}).get(name)
            cell = _rate(rate, missing(found, entry, several))
            cells.append(cell._replace(best=entry in tied[name].best))
        return [
            Cell(display_name(found, entry, tasks)),
            *cells,
            Cell(times_text(*times.get(entry, (None, None)))),
        ]

    guesses = [guessed(found, tasks, FITS), *(guessed(found, several) for several in run.values())]
    texts = ["" if guess is None else share_text(guess) for guess in guesses]
    return Table(
        title=title,
        columns=["entry", "tasks", FITS, *run, "time"],
        words=1,
        rows=[line(entry) for entry in _of(shown, ordered(listed, rates, sort))],
        caption=LEGEND,
        best=BEST,
        closing=[
            *map(line, controls),
            [Cell(text) for text in (GUESSING, "", *texts, "")],
        ],
    )


LEGEND = f"{UNLEARNED}: fewer than half of the seeds learn a task; 1/2: one of two tasks."


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
        of: Ties = ties(found, several, entry_order(found, several)[0])
        if of.least_p is not None and not of.best:
            notes.append(
                f"{name}: no encoding differs significantly from the highest; the smallest "
                f"corrected p of two of the {of.compared} is {of.least_p:.2g}"
            )
    return notes


def task_table(
    found: Scores,
    task: str,
    sort: str | None = None,
    shown: Collection[str] | None = None,
    only: Collection[str] | None = None,
) -> Table:
    """A row an entry, a column a split: how many seeds generalise to it, and their median.

    Args:
        sort: a split, or ``suite``; None: the mean success rate over the splits.
        shown: the entries with a row; None: all.
        only: the splits with a column; None: all.
    """
    one = found.suite.tasks[task]
    splits = [s for s in (IN_DOMAIN, *one.generalises) if only is None or s in only]
    entries, controls = entry_order(found, [task])
    cells = cells_of_task(found, task)
    best = ties(found, [task], entries).alike
    run = [entry for entry in entries if missing(found, entry, [task]) != NOT_RUN] or entries

    def line(entry: str) -> list[Cell]:
        first = next((row for (e, _), row in cells.items() if e == entry), None)
        why = missing(found, entry, [task])
        return [
            Cell(display_name(found, entry, [task]), entry in best),
            Cell("" if first is None else f"{first['lr']:g}"),
            *(seeds_cell(cells.get((entry, split)), why) for split in splits),
            Cell(times_text(first["cost"], first["near"]) if first else ""),
        ]

    by = [split for split in splits if split != IN_DOMAIN] if sort is None else [sort]
    rows = run if sort == SUITE else sorted(run, key=lambda e: _place(e, cells, by or splits))
    heads = [f"{'fits' if s == IN_DOMAIN else s} <= {percent(one.threshold(s))}" for s in splits]
    clusters = f"{CLUSTERS}: seeds in two clusters. " if any(
        row["clusters"] for (_, split), row in cells.items() if split in splits
    ) else ""  # fmt: skip
    again = any(row["again"] for row in cells.values())
    return Table(
        title=f"{task} ({one.family}): seeds with an error up to the threshold, median error in %",
        columns=["entry", "rate", *heads, "time"],
        words=2,
        rows=[line(entry) for entry in _of(shown, rows)],
        caption=f"{clusters}rate: the learning rate that was chosen in domain."
        + " Flips: of seeds made again later, those on the other side of the threshold." * again,
        best=BEST,
        closing=[*map(line, controls), *_measured(found, task, splits)],
    )


def _measured(found: Scores, task: str, splits: Sequence[str]) -> list[list[Cell]]:
    """What guessing gives on each split, and how many answers a run measures."""
    # In other phases a run may be measured on another split as in_domain.
    of_task = found.rows.filter(
        (pl.col("task") == task) & pl.col("phase").is_in([TUNING, SCORE])
    ).drop_nulls("n")
    rows = of_task.unique("split").select("split", "guess", "n").rows_by_key("split", unique=True)
    if not rows:
        return []
    known = [rows.get(split, (None, None)) for split in splits]
    guesses = ["" if guess is None else percent(guess) for guess, _ in known]
    answers = ["" if n is None else str(n) for _, n in known]
    return [
        [Cell(text) for text in (name, "", *of, "")]
        for name, of in ((GUESSING, guesses), ("answers", answers))
    ]


def _place(
    entry: str, cells: Mapping[tuple[str, str], Mapping[str, Any]], splits: Sequence[str]
) -> tuple[float, float]:
    """By the highest mean success rate over these splits, then the lowest mean of medians."""
    rows = [cells[entry, split] for split in splits if (entry, split) in cells]
    if not rows:
        return 1, 0
    return -fmean(row["p_generalises"] for row in rows), fmean(row["median"] for row in rows)


def cells_of_task(found: Scores, task: str) -> dict[tuple[str, str], dict[str, Any]]:
    """(entry, split) -> its cell."""
    rows = found.cells.filter(pl.col("task") == task).iter_rows(named=True)
    return {(row["entry"], row["split"]): row for row in rows}


def display_name(found: Scores, entry: str, tasks: Iterable[str]) -> str:
    """The entry, marked where its runs are the reader's (``(yours)``) or some of them are
    (``(+12 yours)``), and where the rate of a score was not tuned as the protocol has it."""
    chosen = (pl.col("entry") == entry) & pl.col("task").is_in(list(tasks))
    begun = (pl.col("phase") == TUNING) | pl.col("counts")
    runs = found.rows.filter(chosen & begun).unique("run_id")["shipped"]
    yours = int((~runs).sum())
    marks = [YOURS if yours == len(runs) else f"(+{yours} yours)"] if yours else []
    untuned = found.cells.filter(chosen & (pl.col("rates") < len(found.suite.protocol.rates)))
    return " ".join([entry, *marks, *([NOT_TUNED] if len(untuned) else ())])


def _of(shown: Collection[str] | None, entries: Iterable[str]) -> list[str]:
    return [entry for entry in entries if shown is None or entry in shown]


def _rate(rate: Rate | None, why: str, marked: bool = True) -> Cell:
    """``69° 1/2`` with the interval as detail."""
    if rate is None:
        return Cell(why)
    partly = f" {rate.tasks}/{rate.of}" if marked and rate.tasks < rate.of else ""
    share = marked_share(rate) if marked else share_text(rate.share)
    return Cell(f"{share}{partly}", detail=interval_text(rate))


def marked_share(rate: Rate) -> str:
    """``69°``: in %, and whether a task of it is not learned."""
    return share_text(rate.share) + (UNLEARNED if rate.unlearned else "")


def interval_text(rate: Rate) -> str:
    """``[40, 88]``, in %."""
    return f"[{100 * rate.low:.0f}, {100 * rate.high:.0f}]"


def share_text(share: float) -> str:
    """In %; 0 and 100 stand for none and all."""
    if 0 < share < 1:
        return "<1" if share < 0.005 else ">99" if share > 0.995 else f"{100 * share:.0f}"
    return f"{100 * share:.0f}"


def seeds_cell(row: Mapping[str, Any] | None, why: str) -> Cell:
    """``7/8 0.31‡``, ``7/8 0.31 (1 of 8 flips)`` where runs were made again, with the interval of
    7/8 as detail."""
    if row is None:
        return Cell(why)
    median = percent(row["median"]) if row["measured"] else "-"
    low, high = 100 * row["p_low"], 100 * row["p_high"]
    again = f" ({row['flips']} of {row['again']} flips)" if row["again"] else ""
    text = f"{row['k']}/{row['n']} {median}{CLUSTERS if row['clusters'] else ''}{again}"
    return Cell(text, detail=f"[{low:.0f}, {high:.0f}]")


def times_text(value: float | None, near: bool | None) -> str:
    """A time relative to rope's; ``~1.61`` if rope's runs are of another time."""
    return "" if value is None else f"{'' if near else '~'}{value:.2f}"
